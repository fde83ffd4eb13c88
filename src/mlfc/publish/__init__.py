"""Distribution of artifacts: OCI registries and layouts, signatures, SBOMs. No module needs another's extra."""
