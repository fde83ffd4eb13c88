import sys

# jsonschema would build the grammar of IRIs when it is imported, which takes a second; no document of the tests has one
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # None makes its import fail
