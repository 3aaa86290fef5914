//! How property tests are set up: nothing written beside the sources, every failure replayable.

use std::hash::{BuildHasher, RandomState};

use proptest::test_runner::{Config, RngSeed};

/// A fresh seed for each test, told where the test fails. To replay it:
/// `PROPTEST_RNG_SEED=<seed> cargo test -p walrelay-engine <name of the test>`.
pub(crate) fn config() -> Config {
    let mut config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(RandomState::new().hash_one(()));
    }
    if let RngSeed::Fixed(seed) = config.rng_seed {
        eprintln!("replay with PROPTEST_RNG_SEED={seed}");
    }
    config
}
