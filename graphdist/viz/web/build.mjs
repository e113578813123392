// Bundles the page's script and style into ../static, with the licences of what is in the bundle.
import { build } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const options = { bundle: true, minify: true, charset: "ascii", legalComments: "none" };
const result = await build({
  ...options,
  entryPoints: ["src/main.js"],
  outfile: "../static/viewer.js",
  format: "iife",
  target: "es2022",
  metafile: true,
});
await build({ ...options, entryPoints: ["src/style.css"], outfile: "../static/viewer.css" });

const manifest = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
const packages = new Set();
for (const input of Object.keys(result.metafile.inputs)) {
  const match = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (match) packages.add(match[1]);
}
// What a package depends on may be bundled in its own files already.
for (const name of packages) {
  for (const other of Object.keys(manifest(name).dependencies ?? {})) packages.add(other);
}
const licences = [...packages].sort().map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = manifest(name);
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n`;
});
writeFileSync("../static/LICENSES.txt", licences.join("\n---\n\n"));
