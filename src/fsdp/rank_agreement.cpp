#include "rank_agreement.hpp"

namespace mica::fsdp {

std::vector<std::vector<std::int64_t>> numbers_of_all_ranks(DeviceMesh& device_mesh, const std::vector<std::int64_t>& mine) {
  ProcessGroup& group = device_mesh.agreement_group();
  Stream& compute = device_mesh.compute();
  const auto n = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sent = mine;
  std::vector<std::int64_t> all;  // a group that moves nothing leaves everybody agreeing
  for (int r = 0; r < group.num_ranks(); ++r) all.insert(all.end(), mine.begin(), mine.end());
  group.all_gather(compute, "agreement", TensorView{sent.data(), Shape{n}, DType::i64},
                   TensorView{all.data(), Shape{n * group.num_ranks()}, DType::i64});
  compute.synchronize();
  std::vector<std::vector<std::int64_t>> by_rank;
  for (int r = 0; r < group.num_ranks(); ++r) by_rank.emplace_back(all.begin() + r * n, all.begin() + (r + 1) * n);
  return by_rank;
}

}  // namespace mica::fsdp
