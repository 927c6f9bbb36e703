"""Benchmarks of acmserve: installed as `acmserve.bench`, run by `acmserve bench`."""
