"""Is it true? Attacks, canaries, and lower bounds on epsilon from what they achieve.

    found = audit(tacit.plan("experiment.toml"))
    found.refuted                       # True: something that is proved is wrong, in theory or in code
    found.canaries[0].epsilon           # epsilon is at least this, with 95 % confidence

``bounds`` turns successes of an attacker into lower bounds; ``mechanism`` runs a method's own code thousands of times
on a small federation; ``canaries`` and ``one_run`` put made people into a real experiment; ``attacks`` are those that a
person understands.
"""

from tacit.audit.audit import Audit, audit

__all__ = ["Audit", "audit"]
