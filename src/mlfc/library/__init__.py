"""Native code as libraries."""
