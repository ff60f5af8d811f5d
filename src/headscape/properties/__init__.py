"""Properties that every encoding must have, and a function that checks them.

check("alibi")             a list of results, one per property
check(MyEncoding)          a class of one's own
"""

from headscape.properties.cases import PROPERTIES
from headscape.properties.checking import Result, check

__all__ = ["PROPERTIES", "Result", "check"]
