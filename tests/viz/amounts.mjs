// Prints amounts as the page writes them, as JSON. Arguments: browser (unused), the amounts as JSON.
import { bytesText, flopsText, shareText, timeText } from "../../graphdist/viz/web/src/program.js";

const { bytes, flops, shares, seconds } = JSON.parse(process.argv[3]);
console.log(JSON.stringify({ bytes: bytes.map(bytesText), flops: flops.map(flopsText), shares: shares.map(shareText), seconds: seconds.map(timeText) }));
