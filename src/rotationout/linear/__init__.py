"""Linear models under noise, as scikit-learn estimators (section 2.2; the extra ``linear``).

`RotationOutRegressor` and `DropoutRegressor` integrate the noise out and solve in closed form; those ending in CV also
choose its strength. `NoisyLogisticRegression` is trained under noise. `condition_numbers` and `margin_angle` are what
the paper says of both, as numbers.
"""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rotationout.linear needs scikit-learn, which cannot be imported: pip install 'rotationout[linear]'"
    ) from error

from ._classification import NoisyLogisticRegression
from ._condition import ConditionNumbers, condition_numbers, rotation_condition_bound
from ._margin import boundary_angle, flip_probability, margin_angle
from ._regression import DropoutRegressor, RotationOutRegressor
from ._selection import DropoutRegressorCV, RotationOutRegressorCV

__all__ = [
    "ConditionNumbers",
    "DropoutRegressor",
    "DropoutRegressorCV",
    "NoisyLogisticRegression",
    "RotationOutRegressor",
    "RotationOutRegressorCV",
    "boundary_angle",
    "condition_numbers",
    "flip_probability",
    "margin_angle",
    "rotation_condition_bound",
]
