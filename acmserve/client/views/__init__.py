"""What the routes below /v1/acm answer, as frozen dataclasses.

A test holds each against the server's OpenAPI document, which describes every field.
"""
