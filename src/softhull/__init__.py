"""softhull: certified statements about softmax.

Every public name is here; beside it only ``softhull.cvxpy`` is public.
"""

from .bounds.softmax import SoftmaxPlanes as SoftmaxPlanes
from .bounds.softmax import softmax_bounds as softmax_bounds
from .bounds.softmax import softmax_planes as softmax_planes
from .bounds.table import BOUNDS as BOUNDS
from .bounds.table import Bound as Bound
from .bounds.table import Curvature as Curvature
from .bounds.table import Exactness as Exactness
from .bounds.vertex import softmax_extrema as softmax_extrema
from .errors import InvalidInput as InvalidInput
from .errors import MissingExtra as MissingExtra
from .errors import SofthullError as SofthullError

__version__ = "0.1.0.dev0"
