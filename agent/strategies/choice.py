"""Which strategies there are."""

from agent.strategies.best_of_n import BestOfN
from agent.strategies.contrastive import Contrastive
from agent.strategies.evolve import Evolve
from agent.strategies.fsr import Fsr
from agent.strategies.portfolio import Portfolio

AnyStrategy = BestOfN | Fsr | Contrastive | Evolve | Portfolio
STRATEGIES: dict[str, type[AnyStrategy]] = {
    "best-of-n": BestOfN,
    "fsr": Fsr,
    "contrastive": Contrastive,
    "evolve": Evolve,
    "portfolio": Portfolio,
}
