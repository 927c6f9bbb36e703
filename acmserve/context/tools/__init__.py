"""Context tools of a model: schema, run and words of each, and the suites that offer them."""
