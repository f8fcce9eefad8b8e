// write_units FOLDER CONFIGURATION…: writes the made-up unit of each configuration (as made_units.h reads them) as
// FOLDER/NAME.cu, and prints "NAME registers shared" a line: what a shipped row allows, else 0 0.
#include <cstdio>
#include <exception>
#include <string>

#include "codegen/build/compile.h"
#include "formats/core/file.h"
#include "tests/codegen/made_units.h"

int main(int argc, char** argv) {
  using namespace kvcc;
  if (argc < 3) return 2;
  try {
    const codegen::Templates templates = codegen::read_templates();
    make_folder(argv[1]);
    for (int i = 2; i < argc; ++i) {
      for (const codegen::Configuration& c : made::configurations(argv[i])) {
        const codegen::KernelSpec spec = made::kernel_spec(c);
        write_text_file(std::string(argv[1]) + "/" + spec.name + ".cu",
                        codegen::emit_unit({}, spec, templates, "proof"));
        int registers = 0, shared = 0;
        for (const codegen::Shipped& row : codegen::shipped()) {
          if (row.configuration == c) registers = row.registers, shared = row.shared_bytes;
        }
        std::printf("%s %d %d\n", spec.name.c_str(), registers, shared);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_units: %s\n", error.what());
    return 1;
  }
  return 0;
}
