from typing import Any

API: int

def __getattr__(name: str) -> Any: ...
