"""The recursive language model of PEEK: an agent that looks at a long context through a Python session."""
