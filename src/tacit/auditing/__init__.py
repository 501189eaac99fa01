"""Privacy audits: attacks, canaries, and lower bounds on epsilon from their success.

    found = audit(tacit.plan("experiment.toml"))
    found.refuted                       # True: something that is proved is wrong, in theory or in code
    found.canaries[0].epsilon           # epsilon is at least this, with 95 % confidence

``bounds`` computes lower bounds from the success of an attacker. ``mechanism`` runs the code of a method thousands of
times on a small federation. ``canaries`` and ``one_run`` put artificial units into a real experiment.
"""

from tacit.auditing.audit import Audit, audit

__all__ = ["Audit", "audit"]
