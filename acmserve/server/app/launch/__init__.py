"""What happens before vLLM is imported, how API servers find their siblings, and what is said once a server listens."""
