#include "runner/models/sasrec/time_attention.h"

#include <torch/types.h>

namespace lockstep {
namespace {

// table_RD → table_RHE: D holds the heads one after the other.
at::Tensor heads_of_table(const at::Tensor& table_RD, int64_t heads) {
  return table_RD.view({table_RD.size(0), heads, table_RD.size(1) / heads});
}

// Repeats the relations for each head, without a copy.
at::Tensor for_heads(const at::Tensor& relations_BTT, int64_t heads) {
  return relations_BTT.unsqueeze(1).expand({-1, heads, -1, -1});
}

// rows_BTTD → rows_BHTTE
at::Tensor heads_of_rows(const at::Tensor& rows_BTTD, int64_t heads) {
  const int64_t b = rows_BTTD.size(0);
  const int64_t t = rows_BTTD.size(1);
  return rows_BTTD.view({b, t, t, heads, rows_BTTD.size(3) / heads}).permute({0, 3, 1, 2, 4});
}

}  // namespace

at::Tensor time_relations(const at::Tensor& times_BT, int64_t span) {
  return (times_BT.unsqueeze(2) - times_BT.unsqueeze(1)).abs_().clamp_max_(span);
}

at::Tensor bucketed_time_scores(const at::Tensor& query_BHTE, const at::Tensor& table_RD,
                                const at::Tensor& relations_BTT) {
  const int64_t h = query_BHTE.size(1);
  const at::Tensor scores_BHTR = at::einsum("bhte,rhe->bhtr", {query_BHTE, heads_of_table(table_RD, h)});
  return scores_BHTR.gather(3, for_heads(relations_BTT, h));
}

at::Tensor bucketed_time_values(const at::Tensor& attention_BHTT, const at::Tensor& table_RD,
                                const at::Tensor& relations_BTT) {
  const int64_t b = attention_BHTT.size(0);
  const int64_t h = attention_BHTT.size(1);
  const int64_t t = attention_BHTT.size(2);
  const at::Tensor weights_BHTR = at::zeros({b, h, t, table_RD.size(0)}, attention_BHTT.options())
                                      .scatter_add(3, for_heads(relations_BTT, h), attention_BHTT);
  return at::einsum("bhtr,rhe->bhte", {weights_BHTR, heads_of_table(table_RD, h)});
}

at::Tensor pairwise_time_scores(const at::Tensor& query_BHTE, const at::Tensor& rows_BTTD) {
  const at::Tensor rows_BHTTE = heads_of_rows(rows_BTTD, query_BHTE.size(1));
  return at::matmul(rows_BHTTE, query_BHTE.unsqueeze(-1)).squeeze(-1);
}

at::Tensor pairwise_time_values(const at::Tensor& attention_BHTT, const at::Tensor& rows_BTTD) {
  const at::Tensor rows_BHTTE = heads_of_rows(rows_BTTD, attention_BHTT.size(1));
  return at::matmul(attention_BHTT.unsqueeze(3), rows_BHTTE).squeeze(3);
}

}  // namespace lockstep
