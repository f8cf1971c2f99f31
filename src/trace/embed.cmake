# Writes OUTPUT, a C++ file that holds the files of the page as constants. Run as
#   cmake -D PAGE=<folder> -D OUTPUT=<file> -P embed.cmake
set(text "#include \"sluice/trace/page.h\"\n\nnamespace sluice::page {\n\n")
foreach(part "kHtml page.html" "kStyle page.css" "kScript data.js view.js draw.js point.js around.js")
  separate_arguments(part)
  list(POP_FRONT part name)
  set(content)
  foreach(file ${part})
    file(READ ${PAGE}/${file} one)
    string(APPEND content "${one}")
  endforeach()
  string(APPEND text "const std::string_view ${name} = R\"sluice-page(${content})sluice-page\";\n")
endforeach()
file(WRITE ${OUTPUT} "${text}\n}  // namespace sluice::page\n")
