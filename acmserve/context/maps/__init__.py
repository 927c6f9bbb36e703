"""The context map: what many questions about one corpus have in common, as bounded text."""
