// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mica/fsdp/ignored.hpp"
#include "mica/fsdp/root.hpp"
#include "mica/fsdp/unit.hpp"

namespace mica::fsdp {

/// The units below a root unit and the parameters of each. All checks that can fail are made here, before a unit is changed.
class UnitClaim {
 public:
  /// @throws ConfigError: see Root's constructor.
  UnitClaim(Unit& root, const RootOptions& options);

  struct Member {
    Unit* unit;
    std::string name;
    std::vector<UnitParameter> parameters;
  };
  /// In module order, the root unit first.
  std::vector<Member> members;
  struct Buffer {
    std::string full_name;
    nn::ModuleBuffer* buffer;
    std::optional<DType> dtype;  ///< the innermost unit's buffer_dtype
  };
  std::vector<Buffer> buffers;  ///< of modules that are not ignored
  std::vector<UnitParameter> ignored_parameters;
  std::vector<ModuleBufferName> ignored_buffers;
  std::unordered_set<const nn::Module*> ignored_modules;

 private:
  /// The units around a module, outermost first; indices into members.
  using Chain = std::vector<std::size_t>;
  struct User {
    std::string module_name;
    nn::Module* module;
  };
  [[nodiscard]] const Chain& chain_of(const User& user) const { return chains_.at(user.module); }

  void find_units();
  void find_users();
  void find_ignored();
  void assign_parameters();
  void find_buffers();
  [[nodiscard]] std::size_t owner_of(const std::string& full_name, const std::vector<User>& users) const;
  void check_ignored() const;
  void check_frozen() const;
  void check_options() const;
  void check_meshes() const;

  Unit& root_;
  const RootOptions& options_;
  std::unordered_map<const nn::Module*, Chain> chains_;
  std::unordered_map<const nn::Parameter*, std::vector<User>> users_;
  std::vector<IgnoredSet> ignored_of_;  // one a member
  std::unordered_set<const nn::Parameter*> ignored_;
};

}  // namespace mica::fsdp
