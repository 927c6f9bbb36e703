"""What happens before vLLM is imported, and what is said once the server listens."""
