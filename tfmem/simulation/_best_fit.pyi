# best_fit.c: the same names as in Python, and a constant that both have to agree on.
from tfmem.simulation.best_fit import BestFit as BestFit
from tfmem.simulation.best_fit import Chunk as Chunk

MOST_PADDING: int
