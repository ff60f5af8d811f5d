"""Properties that every encoding must have, and a function that checks them.

check("alibi")             a list of results, one per property
check(MyEncoding)          your own class
"""

from headscape.properties.cases import PROPERTIES, Result, check

__all__ = ["PROPERTIES", "Result", "check"]
