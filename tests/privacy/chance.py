"""Draws that are fixed, and intervals of chance."""

import hashlib
import itertools
import math
from fractions import Fraction


def exp_between(exponent: Fraction) -> tuple[Fraction, Fraction]:
    """Rational bounds on e^exponent for 0 ≤ exponent ≤ 20: a Taylor sum, and the geometric bound on what is left."""
    last = 120
    terms = itertools.accumulate(range(1, last), lambda term, n: term * exponent / n, initial=Fraction(1))
    lower = sum(terms, Fraction(0))
    rest = exponent**last / math.factorial(last) / (1 - exponent / (last + 1))
    return lower, lower + rest


def fixed(name):
    """A secret source that gives the same bytes every time."""
    return lambda length: hashlib.shake_256(str(name).encode()).digest(length)
