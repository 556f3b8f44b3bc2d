// Small PDB files, written by hand.
#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

namespace lockstep {

struct PdbAtom {
  std::string name = "CA";
  std::string residue = "ALA";
  char chain = 'A';
  int number = 1;
  double x = 0;
  double y = 0;
  double z = 0;
  char altloc = ' ';
  char insertion_code = ' ';
  const char* record = "ATOM";
};

inline std::string pdb_line(const PdbAtom& atom) {
  std::array<char, 100> line = {};
  std::snprintf(line.data(), line.size(), "%-6s%5d %-4s%c%-3s %c%4d%c   %8.3f%8.3f%8.3f  1.00 10.00           %c  \n",
                atom.record, 1, (" " + atom.name).substr(0, 4).c_str(), atom.altloc, atom.residue.c_str(), atom.chain,
                atom.number, atom.insertion_code, atom.x, atom.y, atom.z, atom.name[0]);
  return line.data();
}

// A residue with N, CA, C, O (and CB) at places that follow from its number, so that a test can tell them apart.
struct PdbResidue {
  std::string name = "ALA";
  char chain = 'A';
  int number = 1;
  char insertion_code = ' ';
  std::string without = "";  // the name of an atom that is left out
  const char* record = "ATOM";
};

inline std::string pdb_residue(const PdbResidue& residue) {
  std::string text;
  const double at = residue.number % 1000 * 3.0;  // a PDB file has room for four digits
  const std::array<PdbAtom, 5> atoms = {{{.name = "N", .x = at, .y = 0.1, .z = 0.2},
                                         {.name = "CA", .x = at + 1, .y = 1.1, .z = 0.3},
                                         {.name = "C", .x = at + 2, .y = 0.2, .z = 0.4},
                                         {.name = "O", .x = at + 2.1, .y = -1.0, .z = 0.5},
                                         {.name = "CB", .x = at + 1, .y = 2.0, .z = 1.5}}};
  for (PdbAtom atom : atoms) {
    if (atom.name == residue.without) continue;
    atom.residue = residue.name;
    atom.chain = residue.chain;
    atom.number = residue.number;
    atom.insertion_code = residue.insertion_code;
    atom.record = residue.record;
    text += pdb_line(atom);
  }
  return text;
}

// A chain of `count` residues with numbers from 1 on.
inline std::string pdb_chain(int count, char chain = 'A', const std::string& name = "ALA") {
  std::string text;
  for (int i = 1; i <= count; ++i) text += pdb_residue({.name = name, .chain = chain, .number = i});
  return text;
}

}  // namespace lockstep
