# Writes OUT, a source file that defines kvcc::html_asset over the files FILES (a list). Run by cmake -P.
string(CONCAT text "// Made by calib/report/assets/embed.cmake.\n#include \"calib/report/html_assets.h\"\n\n#include <stdexcept>\n#include <string>\n\n"
         "namespace kvcc {\n\nstd::string_view html_asset(std::string_view name) {\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} content)
  string(APPEND text "  if (name == \"${name}\") return R\"asset(${content})asset\";\n")
endforeach()
string(APPEND text "  throw std::out_of_range(\"no asset \" + std::string(name));\n}\n\n}  // namespace kvcc\n")
file(WRITE ${OUT} "${text}")
