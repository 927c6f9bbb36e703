"""Sessions and maps kept: bounded in memory, written through to SQLite, as JSON."""
