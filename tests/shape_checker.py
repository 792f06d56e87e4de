"""Checks every annotated shape and type of vizattn while the tests run."""

from beartype import BeartypeConf, beartype

# An int is welcome where a float is asked for, as everywhere in Python's type hints.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
