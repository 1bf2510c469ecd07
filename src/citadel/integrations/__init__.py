"""Adapters for other frameworks, one module each; importing citadel imports none of them."""

from citadel.errors import UsageError


class MissingPackageError(UsageError, ImportError):
    """A framework is not installed; also an ImportError.

    >>> str(MissingPackageError("langchain", ImportError("No module named 'langchain_core'")))
    "No module named 'langchain_core': run `pip install 'citadel-ir[langchain]'`"
    """

    def __init__(self, extra: str, error: ImportError) -> None:
        super().__init__(f"{error}: run `pip install 'citadel-ir[{extra}]'`")
