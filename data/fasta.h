// DNA: FASTA files, and the two-bit form in which a genome is kept small.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halo::data {

struct FastaRecord {
  std::string name;      ///< the header line without '>'
  std::string sequence;  ///< upper case; letters, '-', '*' and '.' as they come
};

/// All records of a FASTA file, gzipped or not. Lines may have any length and either line end; ';' starts a comment.
/// @throws FileError naming the line for anything that is not FASTA.
std::vector<FastaRecord> read_fasta(const std::string& path);

/// The complement read backwards (A<->T, C<->G, others stay).
std::string reverse_complement(const std::string& sequence);

/// A sequence of A, C, G, T at two bits a base: "HALO2BIT", the length (8 bytes, little-endian), four bases a byte from
/// the low bits up. Other letters are not kept: write refuses them.
/// The file appears under its name only when it is complete and on the disk. @throws ArgumentError for other letters,
/// FileError where reading or writing fails.
void write_two_bit(const std::string& path, const std::string& sequence);
std::string read_two_bit(const std::string& path);

}  // namespace halo::data
