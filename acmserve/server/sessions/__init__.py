"""Sessions as the server holds them: store, tenants, locks, branches."""
