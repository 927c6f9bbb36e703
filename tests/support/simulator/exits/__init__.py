"""Background chunks that their worker leaves."""
