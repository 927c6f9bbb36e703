"""Between a route and the engine: parameters in, receipt and answer out."""
