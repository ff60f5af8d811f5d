// Texts that the build puts into the module.
declare module "embed:worker" {
  const text: string;
  export default text;
}
declare module "embed:kernel" {
  const base64: string;
  export default base64;
}
declare module "embed:style" {
  const text: string;
  export default text;
}
