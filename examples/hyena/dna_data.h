// DNA as a language-model example sees it.
#pragma once

#include <halo/core/generator.h>

#include <string>

namespace example {

/// The bases of a FASTA file (gzipped or not; its records joined) or of a .2bit file; upper case. An empty path means
/// the E. coli genome that comes with Halo.
std::string load_genome(const std::string& path);

/// Token ids [batch, length + 1] of random windows of `genome`, each strand equally often.
halo::Tensor random_windows(const std::string& genome, int64_t batch, int64_t length, halo::Generator& generator);

}  // namespace example
