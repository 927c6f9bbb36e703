"""HTTP: sessions on vLLM's own server. Knows requests and answers. Block tables, plans and KV are the engine's."""
