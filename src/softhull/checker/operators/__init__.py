"""Operators that are made of others, in exact arithmetic, a family a file.

Every rule returns the very function that the standard defines. Weights that are no numbers of a float, as 1/n, are
scales of a sum, which are balls.
"""

from . import attention as attention
from . import curves as curves
from . import extremes as extremes
from . import masks as masks
from . import moves as moves
from . import normalization as normalization
from . import resampling as resampling
from . import sums as sums
from . import windows as windows
