"""A worker with recurrent layers."""
