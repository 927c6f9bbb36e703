"""What vLLM loads: its general plugin, the KV connector, the metrics."""
