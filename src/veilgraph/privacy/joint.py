r"""Noise that holders make together: each adds a share, and the sum that is opened under masks has what one ε needs.

Of P holders up to t may work with whoever opens the sum: they know their own noise, or add none. Each holder adds
Gaussian noise of standard deviation τ = σC/√(P - t) to its clipped rows, so the noise of any k = P - t others, the
honest ones, is σC together. A holder's rows are then protected by the Gaussian mechanism with σ, **in that sum and
nowhere else**: by themselves they have a share of the noise.

*What is sent.* g = ``noise.granularity(τ)``, the same power of two at all holders. A holder's row is put on multiples
of g, never longer for it, and its noise is a multiple of g (``noise``): row K_j·g, noise R_j·g, R_j = round(n_j/g). The
ring holds (K_j + R_j)·g as it is, with no division and no rounding beside it, or the value is refused. So what is
opened is Σ(K_j + R_j)·g to the last bit, of which those who collude take off theirs: K + R remains, K the integers of
the honest holders' rows and R = R_1 + … + R_k. All else (the mean, the job's precision) is computed from that.

*The law of R.* With s = τ/g cells per standard deviation, R_j has the characteristic function Σ_l F(θ + 2πl),
F(θ) = e^{-s²θ²/2}·sin(θ/2)/(θ/2), by Poisson summation. That of R is its k-th power. Compare Q, the density of
N(0, k·s²) + U_1 + … + U_k at whole numbers, U uniform on [-1/2, 1/2): it has Σ_l F(θ + 2πl)^k. What differs are
products in which not all l are the same, and these have Σ_j (θ + 2πl_j)² ≥ 4π²(1 - 1/k). So for every m

    |P[R = m] - Q(m)|  ≤  2k·e^{-2π²s²(1 - 1/k)}          (s ≥ 1, 2 ≤ k ≤ 1024),

and a density with U_k at m is the probability of being within half a cell of m without it:

    Q(m - K) = P[round(K + N(0, k·s²) + U_1 + … + U_{k-1}) = m].

Q is thus what comes of *one* Gaussian of √k·τ = σC on K by post-processing: adding k - 1 uniforms that depend on
nothing, and rounding. It is exactly as private as the event says, or more. The difference is nil: s ≥ 2^20, so the
exponent is below -10^13, and no R is more than 13.3·√k of Q's standard deviations out, where Q is above e^{-10^6}. For
s near 1 tests compare all three numerically, and the exact δ of R with the Gaussian's.

*What is computed.* R_j comes from ``noise.gaussian``, whose cells have the probability of the rounded normal within a
factor e^±γ(z), γ ≤ 11·2^-27 up to 10 τ, beyond which lies a mass of 2^-75. In a convolution of k such laws factors
multiply and masses add up. So for rows of d values (ε, δ) becomes

    (ε + 2Γ, e^Γ·δ + (1 + e^{ε + Γ})·k·d·2^-75),  Γ = 11·k·d·2^-27.

At d = 64 and k = 8 that is 10^-4 more ε (typically 2·10^-5), and at ε ≤ 16 10^-12 more δ. The ledger does not add this.

*Why never twice.* Let the same bytes of some holders be in two sums, and another holder's be others: the difference
has no noise but that holder's shares, 2τ² in place of 2σ²C². So every sum has new noise of all holders, and is paid
for by all; nothing is kept, and what was kept of jobs without this is not used. A sum of which one summand is missing
cannot be opened: the masks of that session do not cancel.

*In every step.* Sums follow each other, and what is summed next depends on what was opened, never on a share by itself:
the adversary knows R_1 + … + R_k of a step, and nothing else is made of any R_j. So R of a step is as new given all
that was seen before, its law is the one above, and steps compose adaptively as Gaussian releases of σ do. A holder that
is sent what came of a sum has its own share in it and takes it off: it is one of the t, which are then at least 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from veilgraph.core.errors import ConfigError


@dataclass(frozen=True)
class Joint:
    """Who makes the noise of a sum.

    Args:
        holders: P, how many add noise.
        colluding: t, how many of them may work with whoever opens the sum, or add none.

    Raises:
        ConfigError: not 0 ≤ t ≤ P − 2: with fewer than two others' noise there is nothing to share.
    """

    holders: int
    colluding: int

    def __post_init__(self) -> None:
        most = self.holders - 2
        whole = all(type(each) is int for each in (self.holders, self.colluding))
        if not whole or not 0 <= self.colluding <= most:
            way_out = "leave joint_noise out"
            if most >= 0:
                way_out = f"set it to at most {most}, or {way_out}, and each adds all of it, which withstands them all"
            raise ConfigError(
                f"privacy.joint_noise.colluding={self.colluding} and {self.holders} holders publish: at least two "
                f"beside those must make the noise; {way_out}",
                key="privacy.joint_noise.colluding",
                value=self.colluding,
            )

    @property
    def honest(self) -> int:
        """P − t, how many holders' noise is enough."""
        return self.holders - self.colluding

    @property
    def share(self) -> float:
        """Standard deviation of one holder's noise over that of the sum that its ε needs: 1/√(P − t)."""
        return 1 / math.sqrt(self.honest)
