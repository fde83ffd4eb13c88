"""Artifacts travel: OCI registries and layouts, signatures, bills of materials. A file here needs no other's extra."""
