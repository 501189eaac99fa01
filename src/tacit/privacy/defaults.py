"""Default settings of statistics and metrics that are released with noise. They depend on no record."""

# On means and deviations, relative to the sensitivity: epsilon 0.34 at delta 1e-5 (mu = 0.1), little compared to
# training. The error of a mean is 10 sqrt(2 F + 1) / subjects half widths of its bounds: a few per cent from some
# thousand people on.
STATISTICS_NOISE = 10.0
# A record whose true class has a probability below e^-4 = 2 % counts as e^-4 in private metrics.
LOG_LOSS_BOUND = 4.0
