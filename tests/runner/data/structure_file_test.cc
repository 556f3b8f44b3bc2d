#include "runner/models/protein/data/structure_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/runner/data/pdb_text.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Structure parsed(const std::string& text, StructureFormat format = StructureFormat::kPdb) {
  Result<Structure> structure = parse_structure(text, format);
  EXPECT_TRUE(structure.ok()) << structure.error().message;
  return structure.ok() ? *std::move(structure) : Structure();
}

std::string refusal(const std::string& text, StructureFormat format = StructureFormat::kPdb) {
  const Result<Structure> structure = parse_structure(text, format);
  EXPECT_FALSE(structure.ok());
  return structure.ok() ? "" : structure.error().message;
}

std::string sequence(const StructureChain& chain) {
  std::string text;
  for (const Position& position : chain.positions) text += kResidueAlphabet[position.type];
  return text;
}

std::string gzipped(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// The same atoms as mmCIF: "ATOM N ALA A 1 ? x y z" lines.
std::string mmcif(const std::string& rows) {
  return "data_test\nloop_\n_atom_site.group_PDB\n_atom_site.id\n_atom_site.type_symbol\n_atom_site.auth_atom_id\n"
         "_atom_site.label_alt_id\n_atom_site.auth_comp_id\n_atom_site.label_asym_id\n_atom_site.auth_asym_id\n"
         "_atom_site.auth_seq_id\n_atom_site.pdbx_PDB_ins_code\n_atom_site.Cartn_x\n_atom_site.Cartn_y\n"
         "_atom_site.Cartn_z\n_atom_site.occupancy\n_atom_site.B_iso_or_equiv\n_atom_site.pdbx_PDB_model_num\n" +
         rows;
}

std::string mmcif_residue(const std::string& name, const std::string& chain, int number, const char* code = "?") {
  std::string rows;
  int id = 0;
  for (const char* atom : {"N", "CA", "C", "O"}) {
    ++id;
    rows += "ATOM " + std::to_string(id) + " " + atom[0] + " " + atom + " . " + name + " Z " + chain + " " +
            std::to_string(number) + " " + code + " " + std::to_string(number % 1000) + ".5 " + std::to_string(id) +
            " 0.25 1 10 1\n";
  }
  return rows;
}

TEST(StructureFile, reads_chains_residues_and_the_backbone) {
  const Structure structure =
      parsed(pdb_residue({.name = "GLY"}) + pdb_residue({.name = "TRP", .number = 2}) + pdb_chain(1, 'B', "VAL"));
  ASSERT_EQ(structure.chains.size(), 2U);
  EXPECT_EQ(structure.chains[0].id, "A");
  EXPECT_EQ(sequence(structure.chains[0]), "GW");
  EXPECT_EQ(structure.chains[1].id, "B");
  EXPECT_EQ(sequence(structure.chains[1]), "V");
  const Position& second = structure.chains[0].positions[1];
  EXPECT_EQ(second.number, 2);
  EXPECT_EQ(second.flags, kInFile | kStandardResidue);
  EXPECT_EQ(second.backbone[1], (Atom{7.0F, 1.1F, 0.3F}));
  EXPECT_EQ(second.backbone[3], (Atom{8.1F, -1.0F, 0.5F}));
  EXPECT_TRUE(structure.chains[0].is_protein);
}

TEST(StructureFile, an_atom_that_is_missing_is_nan) {
  const Structure structure = parsed(pdb_residue({}) + pdb_residue({.number = 2, .without = "O"}));
  EXPECT_TRUE(is_complete(structure.chains[0].positions[0].backbone));
  EXPECT_TRUE(is_missing(structure.chains[0].positions[1].backbone[3]));
  EXPECT_FALSE(is_missing(structure.chains[0].positions[1].backbone[2]));
}

TEST(StructureFile, a_coordinate_that_is_nan_makes_its_atom_missing) {
  std::string text = pdb_chain(2);
  text.replace(text.find("   4.000"), 8, "     nan");
  const Structure structure = parsed(text);
  EXPECT_TRUE(is_missing(structure.chains[0].positions[0].backbone[1]));
  EXPECT_TRUE(std::isnan(structure.chains[0].positions[0].backbone[1][2]));
}

TEST(StructureFile, one_residue_is_a_structure) {
  EXPECT_EQ(parsed(pdb_residue({.name = "LYS"})).chains[0].positions.size(), 1U);
}

TEST(StructureFile, ten_thousand_residues_are_read) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += pdb_residue({.number = i});
  const Structure structure = parsed(text);
  ASSERT_EQ(structure.chains[0].positions.size(), 10'000U);
  EXPECT_EQ(structure.chains[0].positions[9999].number, 9999);
}

TEST(StructureFile, gaps_between_numbers_are_filled_with_unknown_positions) {
  const Structure structure = parsed(pdb_residue({.number = -2}) + pdb_residue({.name = "PHE", .number = 2}));
  const StructureChain& chain = structure.chains[0];
  EXPECT_EQ(sequence(chain), "AXXXF");
  EXPECT_EQ(chain.positions[1].number, -1);
  EXPECT_EQ(chain.positions[1].flags, 0);
  EXPECT_TRUE(is_missing(chain.positions[1].backbone[0]));
}

TEST(StructureFile, insertion_codes_stand_in_the_order_of_the_file) {
  const Structure structure = parsed(
      pdb_residue({.name = "CYS", .number = 5}) + pdb_residue({.name = "GLU", .number = 5, .insertion_code = 'A'}) +
      pdb_residue({.name = "ASP", .number = 5, .insertion_code = 'B'}) + pdb_residue({.number = 6}));
  const StructureChain& chain = structure.chains[0];
  EXPECT_EQ(sequence(chain), "CEDA");
  EXPECT_EQ(chain.positions[1].insertion_code, 'A');
  EXPECT_EQ(chain.positions[0].insertion_code, ' ');
}

// IMGT numbers the second half of a loop backwards.
TEST(StructureFile, imgt_insertions_that_are_counted_backwards_stay_in_the_order_of_the_file) {
  std::string text;
  const std::string names[] = {"PRO", "THR", "ASN", "SER", "VAL", "TRP"};
  const std::pair<int, char> numbers[] = {{111, ' '}, {111, 'A'}, {112, 'B'}, {112, 'A'}, {112, ' '}, {113, ' '}};
  for (size_t i = 0; i < 6; ++i) {
    text += pdb_residue({.name = names[i], .number = numbers[i].first, .insertion_code = numbers[i].second});
  }
  const Structure structure = parsed(text);
  EXPECT_EQ(sequence(structure.chains[0]), "PTNSVW");
  EXPECT_TRUE(structure.remarks.empty());
}

TEST(StructureFile, numbers_that_go_backwards_are_sorted_with_a_remark) {
  std::string text;
  for (const int number : {1, 2, 101, 102, 3, 4}) text += pdb_residue({.number = number});
  text += pdb_residue({.name = "GLU", .number = 5, .insertion_code = 'A'}) + pdb_residue({.name = "ASP", .number = 5});
  const Structure structure = parsed(text);
  EXPECT_EQ(structure.chains[0].positions[2].number, 3);
  EXPECT_EQ(sequence(structure.chains[0]).substr(0, 6), "AAAADE");
  EXPECT_THAT(structure.remarks, ElementsAre("chain A goes from residue 102 to 3; its residues are read in the order "
                                             "of their numbers"));
}

// The coordinates of another molecule, for a residue of the same number.
std::string moved(std::string text, double by) {
  for (size_t line = 0; line < text.size(); line = text.find('\n', line) + 1) {
    if (text.compare(line, 4, "ATOM") != 0) continue;
    std::array<char, 16> x = {};
    std::snprintf(x.data(), x.size(), "%8.3f", std::stod(text.substr(line + 30, 8)) + by);
    text.replace(line + 30, 8, x.data());
  }
  return text;
}

std::string in_segment(std::string text, const std::string& segment) {
  for (size_t line = 0; line < text.size(); line = text.find('\n', line) + 1) text.replace(line + 72, 4, segment);
  return text;
}

TEST(StructureFile, two_molecules_with_the_same_chain_and_numbers_are_two_chains) {
  const std::string second = moved(pdb_chain(12, 'A', "TRP"), 500);
  for (const std::string& text : {pdb_chain(12) + "TER\n" + second + "TER\n",  // as joined by a program
                                  pdb_chain(12) + second,                      // the same without TER
                                  in_segment(pdb_chain(12), "PROA") + in_segment(second, "PROB")}) {
    const Structure structure = parsed(text);
    ASSERT_EQ(structure.chains.size(), 2U);
    EXPECT_EQ(structure.chains[0].id, "A");
    EXPECT_EQ(sequence(structure.chains[0]), std::string(12, 'A'));
    EXPECT_EQ(structure.chains[1].id, "B");
    EXPECT_EQ(sequence(structure.chains[1]), std::string(12, 'W'));
    EXPECT_THAT(structure.remarks, ElementsAre("residue 1 of the chain A is there again, 500.0 Å away: it and what "
                                               "follows is read as chain B"));
  }
  const Structure unnamed = parsed(pdb_chain(12, ' ') + "TER\n" + moved(pdb_chain(12, ' '), 25));
  ASSERT_EQ(unnamed.chains.size(), 2U);
  EXPECT_EQ(unnamed.chains[1].id, "B");
  EXPECT_THAT(unnamed.remarks, ElementsAre(HasSubstr("chain without an id is there again, 25.0 Å away")));
}

TEST(StructureFile, the_residues_after_a_ter_that_are_no_others_stay_in_their_chain) {
  const Structure structure =
      parsed(pdb_chain(3) + "TER\n" + pdb_residue({.name = "MSE", .number = 4, .record = "HETATM"}) + pdb_chain(3));
  ASSERT_EQ(structure.chains.size(), 1U);
  EXPECT_EQ(sequence(structure.chains[0]), "AAAM");
  EXPECT_TRUE(structure.remarks.empty());
}

TEST(StructureFile, alternative_locations_are_one_residue_however_far_they_are_apart) {
  std::string text = pdb_chain(2);
  for (const char altloc : {'A', 'B'}) {
    for (const char* atom : {"N", "CA", "C", "O"}) {
      text += pdb_line({.name = atom, .number = 3, .x = altloc == 'A' ? 9.0 : 15.0, .altloc = altloc});
    }
  }
  const Structure structure = parsed(text);
  ASSERT_EQ(structure.chains.size(), 1U);
  EXPECT_EQ(structure.chains[0].positions.size(), 3U);
  EXPECT_EQ(structure.chains[0].positions[2].backbone[1][0], 9.0F);
}

TEST(StructureFile, waters_that_are_numbered_from_1_again_and_again_are_no_chains) {
  std::string text = pdb_chain(3, ' ');
  for (int round = 0; round < 5; ++round) {
    for (int number = 1; number <= 3; ++number) {
      text += pdb_line({.name = "O", .residue = "HOH", .chain = ' ', .number = number, .x = 100.0 + 30 * round});
    }
  }
  const Structure structure = parsed(text);
  ASSERT_EQ(structure.chains.size(), 1U);
  EXPECT_EQ(sequence(structure.chains[0]), "AAA");
  EXPECT_TRUE(structure.remarks.empty());
}

TEST(StructureFile, protonation_states_are_the_residues_that_they_are_states_of) {
  std::string text;
  int number = 0;
  for (const char* name : {"HID", "HIE", "HIP", "HSD", "HSE", "HSP", "CYX", "CYM", "ASH", "GLH", "LYN"}) {
    text += pdb_residue({.name = name, .number = ++number});
  }
  const StructureChain chain = parsed(text).chains[0];
  EXPECT_EQ(sequence(chain), "HHHHHHCCDEK");
  EXPECT_EQ(chain.positions[0].flags, kInFile | kStandardResidue);
}

// Before 1996: no element, the id of the entry and the number of the line at the end, chain ids blank, hydrogens "1HB
// ".
TEST(StructureFile, files_of_before_1996_are_read) {
  const std::string text =
      "ATOM      1  N   VAL     1      -2.900  17.600  15.500  1.00  0.00      2MHB  72\n"
      "ATOM      2  CA  VAL     1      -3.600  16.400  15.300  1.00  0.00      2MHB  73\n"
      "ATOM      3  C   VAL     1      -3.000  15.300  16.200  1.00  0.00      2MHB  74\n"
      "ATOM      4  O   VAL     1      -3.700  14.700  17.000  1.00  0.00      2MHB  75\n"
      "ATOM      5 1HB  VAL     1      -5.100  16.600  15.500  1.00  0.00      2MHB  76\n"
      "ATOM      6  N   LEU     2      -1.700  15.100  16.000  1.00  0.00      2MHB  77\n"
      "ATOM      7  CA  LEU     2      -0.900  14.100  16.700  1.00  0.00      2MHB  78\n"
      "ATOM      8  C   LEU     2      -1.000  13.900  18.300  1.00  0.00      2MHB  79\n"
      "ATOM      9  O   LEU     2      -0.900  14.900  19.000  1.00  0.00      2MHB  80\n";
  const Structure structure = parsed(text);
  ASSERT_EQ(structure.chains.size(), 1U);
  EXPECT_EQ(structure.chains[0].id, "A");
  EXPECT_EQ(sequence(structure.chains[0]), "VL");
  EXPECT_TRUE(is_complete(structure.chains[0].positions[1].backbone));
}

TEST(StructureFile, the_oxygen_at_the_end_of_a_chain_may_have_the_name_of_another_program) {
  const std::string text = pdb_chain(1) + pdb_residue({.number = 2, .without = "O"}) +
                           pdb_line({.name = "OT1", .number = 2, .x = 7}) + pdb_line({.name = "OT2", .number = 2});
  EXPECT_EQ(parsed(text).chains[0].positions[1].backbone[3][0], 7.0F);
}

TEST(StructureFile, the_first_alternative_location_in_the_file_wins) {
  std::string text = pdb_residue({});
  text += pdb_line({.name = "CA", .x = 99, .altloc = 'A'});
  // Two residues at one place: the first gives the name.
  text += pdb_residue({.name = "SER", .number = 2}) + pdb_residue({.name = "THR", .number = 2});
  const Structure structure = parsed(text);
  EXPECT_EQ(structure.chains[0].positions[0].backbone[1][0], 4.0F);
  EXPECT_EQ(sequence(structure.chains[0]), "AS");
}

TEST(StructureFile, selenomethionine_is_m_and_other_modified_residues_are_x) {
  const Structure structure = parsed(pdb_residue({.name = "MSE", .record = "HETATM"}) +
                                     pdb_residue({.name = "SEP", .number = 2, .record = "HETATM"}) +
                                     pdb_residue({.name = "TPO", .number = 3}) + pdb_residue({.number = 4}));
  const StructureChain& chain = structure.chains[0];
  EXPECT_EQ(sequence(chain), "MXXA");
  EXPECT_EQ(chain.positions[0].flags, kInFile);  // not one of the twenty
  EXPECT_EQ(chain.positions[1].flags, 0);        // HETATM is not read
  EXPECT_EQ(chain.positions[2].flags, kInFile);  // an ATOM of another name is there, and unknown
  EXPECT_TRUE(is_complete(chain.positions[2].backbone));
  EXPECT_THAT(structure.remarks, ElementsAre("1 amino acid written as HETATM is left out (SEP 1)"));
}

TEST(StructureFile, ligands_and_chains_of_waters_are_left_out) {
  const Structure structure =
      parsed(pdb_chain(2) + pdb_line({.name = "O", .residue = "HOH", .chain = 'W', .record = "HETATM"}) +
             pdb_line({.name = "O", .residue = "HOH", .chain = 'V', .number = 500}) +
             pdb_line({.name = "FE", .residue = "HEM", .chain = 'A', .number = 200, .record = "HETATM"}));
  ASSERT_EQ(structure.chains.size(), 1U);
  EXPECT_EQ(structure.chains[0].positions.size(), 2U);
}

TEST(StructureFile, nucleic_acids_are_chains_that_are_no_protein) {
  const std::string dna = pdb_line({.name = "P", .residue = " DA", .chain = 'N'}) +
                          pdb_line({.name = "C5'", .residue = " DA", .chain = 'N'});
  const Structure structure = parsed(dna + pdb_chain(2));
  ASSERT_EQ(structure.chains.size(), 2U);
  EXPECT_FALSE(structure.chains[0].is_protein);
  EXPECT_TRUE(structure.chains[1].is_protein);
}

TEST(StructureFile, only_the_first_model_is_read) {
  const std::string models =
      "MODEL        1\n" + pdb_chain(2) + "ENDMDL\nMODEL        2\n" + pdb_chain(3, 'B') + "ENDMDL\n";
  EXPECT_EQ(parsed(models).chains.size(), 1U);
  EXPECT_THAT(parsed(models).remarks, ElementsAre("only the first of 2 models is read"));
  const std::string ligand = pdb_residue({.name = "PCA", .number = 9, .record = "HETATM"});
  const Structure second = parsed("MODEL\n" + ligand + "ENDMDL\nMODEL\n" + pdb_chain(3) + "ENDMDL\n");
  EXPECT_EQ(sequence(second.chains[0]), "AAA") << "the first model with atoms";
  EXPECT_TRUE(second.remarks.empty());
}

TEST(StructureFile, a_chain_without_an_id_gets_a_free_letter) {
  EXPECT_EQ(parsed(pdb_chain(2, ' ')).chains[0].id, "A");
  EXPECT_EQ(parsed(pdb_chain(2, 'A') + pdb_chain(2, ' ')).chains[1].id, "B");
}

TEST(StructureFile, chi1_is_the_dihedral_of_the_first_gamma_atom) {
  // N, CA and CB as in a drawing: the torsion is then the angle at which the gamma atom stands.
  std::string text = pdb_line({.name = "N", .residue = "SER", .x = 1, .y = 0, .z = -1}) +
                     pdb_line({.name = "CA", .residue = "SER"}) + pdb_line({.name = "C", .residue = "SER", .x = -1}) +
                     pdb_line({.name = "O", .residue = "SER", .x = -2}) +
                     pdb_line({.name = "CB", .residue = "SER", .z = 1});
  EXPECT_TRUE(std::isnan(parsed(text).chains[0].positions[0].chi1));
  text += pdb_line({.name = "OG", .residue = "SER", .x = 0, .y = 1, .z = 2});
  EXPECT_NEAR(std::abs(parsed(text).chains[0].positions[0].chi1), M_PI / 2, 1e-6);
  // A second residue of the same number, as in 1EJG.
  text += pdb_line({.name = "CG", .residue = "PRO", .x = 1, .y = 0, .z = 2});
  EXPECT_NEAR(std::abs(parsed(text).chains[0].positions[0].chi1), M_PI / 2, 1e-6);
}

TEST(StructureFile, chains_of_one_sequence_are_one_group) {
  const Structure structure = parsed(pdb_chain(10, 'A') + pdb_chain(10, 'B', "TRP") + pdb_chain(9, 'C'));
  EXPECT_EQ(structure.chains[0].group, 0U);
  EXPECT_EQ(structure.chains[1].group, 1U);
  EXPECT_EQ(structure.chains[2].group, 0U);
}

TEST(StructureFile, mmcif_says_the_same_as_pdb_with_longer_chain_ids) {
  const Structure structure = parsed(
      mmcif(mmcif_residue("GLY", "AA1", 1) + mmcif_residue("TRP", "AA1", 3) + mmcif_residue("VAL", "AA1", 3, "A")),
      StructureFormat::kMmcif);
  ASSERT_EQ(structure.chains.size(), 1U);
  EXPECT_EQ(structure.chains[0].id, "AA1");
  EXPECT_EQ(sequence(structure.chains[0]), "GXWV");
  EXPECT_EQ(structure.chains[0].positions[3].insertion_code, 'A');
  EXPECT_EQ(structure.chains[0].positions[2].backbone[1], (Atom{3.5F, 2.0F, 0.25F}));
}

// mmCIF of which some columns are missing.
std::string mmcif_without(std::string text, const std::vector<std::string>& columns) {
  std::vector<std::string> tags;
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  std::string out = "data_test\nloop_\n";
  std::vector<bool> kept;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    if (line.starts_with("_atom_site.")) {
      kept.push_back(std::find(columns.begin(), columns.end(), line.substr(11)) == columns.end());
      if (kept.back()) out += line + "\n";
    } else if (line.starts_with("ATOM")) {
      for (size_t i = 0; words >> word; ++i) out += kept[i] ? word + " " : "";
      out += "\n";
    }
  }
  return out;
}

TEST(StructureFile, mmcif_may_lack_each_column_that_is_not_needed) {
  std::string text = mmcif(mmcif_residue("GLY", "A", 1) + mmcif_residue("TRP", "A", 2) + mmcif_residue("VAL", "B", 1));
  for (const char* column : {"group_PDB", "id", "type_symbol", "label_alt_id", "label_asym_id", "pdbx_PDB_ins_code",
                             "occupancy", "B_iso_or_equiv", "pdbx_PDB_model_num"}) {
    const Structure structure = parsed(mmcif_without(text, {column}), StructureFormat::kMmcif);
    ASSERT_EQ(structure.chains.size(), 2U) << column;
    EXPECT_EQ(structure.chains[0].id, "A");
    EXPECT_EQ(sequence(structure.chains[0]), "GW");
    EXPECT_EQ(sequence(structure.chains[1]), "V");
  }
  for (const char* column : {"Cartn_x", "Cartn_y", "Cartn_z"}) {
    EXPECT_THAT(refusal(mmcif_without(text, {column}), StructureFormat::kMmcif),
                HasSubstr(std::string("_atom_site has no column ") + column));
  }
  EXPECT_THAT(refusal(mmcif_without(text, {"auth_seq_id"}), StructureFormat::kMmcif),
              HasSubstr("_atom_site has no column auth_seq_id, nor label_seq_id"));
  EXPECT_THAT(refusal(mmcif_without(text, {"auth_atom_id"}), StructureFormat::kMmcif),
              HasSubstr("no column auth_atom_id, nor label_atom_id"));
}

// As PyMOL saves it.
TEST(StructureFile, mmcif_with_label_seq_id_in_place_of_the_authors_numbers_is_read) {
  std::string text = mmcif(mmcif_residue("GLY", "A", 1) + mmcif_residue("TRP", "A", 3));
  text.replace(text.find("auth_seq_id"), 11, "label_seq_id");
  EXPECT_EQ(sequence(parsed(text, StructureFormat::kMmcif).chains[0]), "GXW");
}

TEST(StructureFile, a_coordinate_of_mmcif_that_is_no_number_is_named) {
  std::string text = mmcif(mmcif_residue("GLY", "A", 1));
  text.replace(text.find(" 1.5 "), 5, " 1,5 ");
  EXPECT_THAT(refusal(text, StructureFormat::kMmcif), HasSubstr("row 1 of _atom_site: Cartn_x is no number: 1,5"));
}

TEST(StructureFile, a_byte_order_mark_and_other_encodings_change_nothing) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  const std::string pdb = pdb_chain(3);
  for (const auto& [name, text] : {std::pair<std::string, std::string>("a.pdb", "\xEF\xBB\xBF" + pdb),
                                   {"b.pdb", gzipped(pdb)},
                                   {"c.cif", "\xEF\xBB\xBF" + mmcif(mmcif_residue("ALA", "A", 1))}}) {
    const Result<Structure> read = read_structure_file(fs, folder.write(name, text));
    ASSERT_TRUE(read.ok()) << name << read.error().message;
    EXPECT_TRUE(is_complete(read->chains[0].positions[0].backbone)) << name;
  }
  EXPECT_THAT(
      read_structure_file(fs, folder.write("d.pdb", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"))
          .error()
          .message,
      HasSubstr("Git LFS pointer"));
}

TEST(StructureFile, gzip_is_read_and_a_cut_off_one_is_refused) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  const std::string bytes = gzipped(pdb_chain(50));
  const Result<Structure> read = read_structure_file(fs, folder.write("a.pdb.gz", bytes));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->chains[0].positions.size(), 50U);
  EXPECT_THAT(read_structure_file(fs, folder.write("b.pdb.gz", bytes.substr(0, bytes.size() / 2))).error().message,
              HasSubstr("cut off"));
  EXPECT_THAT(read_structure_file(fs, folder.write("c.pdb.gz", pdb_chain(2))).error().message, HasSubstr("no gzip"));
  EXPECT_THAT(inflate_gzip(gzipped(std::string(1'000'000, 'x')), 1000).error().message, HasSubstr("more than"));
  EXPECT_EQ(inflate_gzip(gzipped("a") + gzipped("b"), 1000).value(), "ab");
}

TEST(StructureFile, what_cannot_be_read_says_why) {
  EXPECT_THAT(refusal(""), HasSubstr("no ATOM record"));
  EXPECT_THAT(refusal("HEADER    NOTHING\nEND\n"), HasSubstr("no ATOM record"));
  EXPECT_THAT(refusal(pdb_chain(2) + "ATOM      1  N   ALA A   3      1.00\n"), HasSubstr("line 11"));
  std::string text = pdb_chain(2);
  text.replace(text.find("   4.000"), 8, "   4.x00");
  EXPECT_THAT(refusal(text), HasSubstr("line 2: x (columns 31-38) is no number"));
  EXPECT_THAT(refusal(pdb_line({.name = "P", .residue = " DA"}) + pdb_line({.name = "O5'", .residue = " DA"})),
              HasSubstr("no protein"));
  EXPECT_THAT(refusal(pdb_line({.name = "O", .residue = "HOH"})), HasSubstr("no chain"));
  EXPECT_THAT(refusal(pdb_line({.name = "CA"}) + pdb_line({.name = "CA", .number = 2})), HasSubstr("no protein"));
  EXPECT_THAT(refusal(mmcif(mmcif_residue("ALA", "A", 1))), HasSubstr("is mmCIF"));
  EXPECT_THAT(refusal("data_x\nloop_\n_atom_site.id\n", StructureFormat::kMmcif), HasSubstr("no atoms"));
  EXPECT_THAT(refusal(pdb_chain(2), StructureFormat::kMmcif), HasSubstr("mmCIF"));
  const std::string cut = mmcif(mmcif_residue("ALA", "A", 1));
  EXPECT_FALSE(refusal(cut.substr(0, cut.size() - 20), StructureFormat::kMmcif).empty());
}

TEST(StructureFile, numbers_that_lie_too_far_apart_are_refused_before_memory_is_taken) {
  EXPECT_THAT(
      refusal(mmcif(mmcif_residue("ALA", "A", 1) + mmcif_residue("ALA", "A", 2'000'000'000)), StructureFormat::kMmcif),
      HasSubstr("residue numbers from 1 to 2000000000"));
}

TEST(StructureFile, knows_files_by_their_endings) {
  EXPECT_EQ(structure_ending_of("a/pdb1ABC.ENT.gz"), ".ent.gz");
  EXPECT_EQ(structure_format_of("x.mmcif"), StructureFormat::kMmcif);
  EXPECT_EQ(structure_format_of("x.pdb"), StructureFormat::kPdb);
  EXPECT_FALSE(structure_format_of("x.pdb.bz2").has_value());
  EXPECT_FALSE(structure_format_of(".pdb").has_value());
}

}  // namespace
}  // namespace lockstep
