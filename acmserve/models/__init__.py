"""Models that acmserve can prepare by itself, without a model hub."""
