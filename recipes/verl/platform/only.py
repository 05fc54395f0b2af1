"""The platform and its mends without anything else of ours, for VERL_USE_EXTERNAL_MODULES: verl as it is, on a CPU, its own queue and engines."""

from recipes.verl.platform import register

register()
