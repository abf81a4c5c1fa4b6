-- SPDX-License-Identifier: Apache-2.0
-- Lmod. Installed as PREFIX/share/mica/modulefiles/mica/VERSION.lua:   module use PREFIX/share/mica/modulefiles; module load mica
-- It finds its tree by where it lies. A copy elsewhere says the folder here: local prefix = "/opt/mica"
local prefix = myFileName():match("^(.*)/share/mica/modulefiles/")
if not prefix then
  LmodError("mica: this module file was copied away from its tree: write the tree's folder into its line 'local prefix'")
end

help([[
Mica trains models that do not fit one device, on MPI clusters.
  mica-train --help          every key of a config
  $MICA_ROOT/share/mica      configs and launch scripts
]])
whatis("Name: Mica")
whatis("Version: " .. myModuleVersion())
whatis("Description: a training runtime for MPI clusters")
whatis("Category: machine learning")

-- The MPI that Mica was built with, under this site's name:
-- depends_on("openmpi")

setenv("MICA_ROOT", prefix)
setenv("MICA_BIN", pathJoin(prefix, "bin"))
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("MANPATH", pathJoin(prefix, "share/man"))
prepend_path("CMAKE_PREFIX_PATH", prefix)
