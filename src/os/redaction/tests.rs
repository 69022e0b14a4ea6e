//! Command lines with a secret each, and command lines without.
//!
//! Arguments are separated by spaces; `·` is a space within one. `«…»` marks what must not be kept.
//! `{A20}` is replaced by twenty letters and digits (`{X…}`: lower hexadecimal, `{U…}`: capitals
//! and digits, `{D…}`: digits, `{B…}`: base64), so that no scanner takes this file for a leak.

use super::*;
use proptest::prelude::*;

const SECRETS: &[&str] = &[
    // By name.
    "python train.py --pass «hunter2»",
    "python train.py --pass=«hunter2»",
    "python train.py --db-pass=«hunter2»",
    "python train.py --db-pass «correct·horse·battery·staple»",
    "python train.py --password «--hunter2»",
    "python train.py --token «-x{A12}» --lr 1",
    "python train.py --password=«--hunter2·and·more»",
    "env DB_PASS=«hunter2» python train.py",
    "env DB_PASS=«two·words» python train.py",
    "python train.py --creds «alice/hunter2»",
    "python train.py --credentials=«alice:hunter2»",
    "python train.py --pin «1234»",
    "python train.py --pin=«483920»",
    "python train.py --otp «123456»",
    "python train.py --use-auth-token «hunter2»",
    "python train.py --jwt «abc.def.ghi»",
    "python train.py --opt.auth.pw «hunter2»",
    "python train.py opt.auth.pw=«hunter2»",
    "python train.py +logger.wandb.api_key=«hunter2»",
    "python train.py ++db.password='«a·b·c»'",
    "python train.py --apiKey «hunter2»",
    "python train.py --authtoken=«hunter2»",
    "python train.py --auth-token «hunter2»",
    "python train.py --access-key «hunter2»",
    "python train.py --private_key=«MIIEvQIBADANBg»",
    "python train.py --secret «hunter2»",
    "python train.py --client-secret «hunter2»",
    "python train.py --session «9f8a7b6c5d»",
    "python train.py --cookie «sid=1;·uid=2»",
    "python train.py --auth «alice:hunter2»",
    "python train.py --key «hunter2hunter2»",
    "python train.py --passphrase «open·sesame»",
    "python train.py -Ddb.password=«hunter2»",
    "python train.py --password:«hunter2»",
    "docker run -eHF_TOKEN=«hunter2» image",
    "docker run -e HF_TOKEN=«hunter2» image",
    "kubectl create secret generic x --from-literal=password=«hunter2»",
    "git config user.password «hunter2»",
    "aws configure set aws_secret_access_key «hunter2hunter2»",
    "python train.py --token --api-key «hunter2»",
    "python train.py --wandb-key «{X40}»",
    "python train.py --some-option «{X40}»",
    "wandb login «{X40}»",
    "wandb login --relogin «{X40}»",
    // Options of known programs.
    "curl -u alice:«hunter2» https://host/x",
    "curl -ualice:«hunter2» https://host/x",
    "curl --user alice:«hunter2:more»",
    "curl --user=alice:«hunter2»",
    "curl --proxy-user alice:«hunter2»",
    "smbclient -U alice%«hunter2» //host/share",
    "sshpass -p «hunter2» ssh -p 22 host",
    "sshpass -p«hunter2» ssh host",
    "/usr/bin/sshpass -p «two·words» ssh host",
    "mysql -u root -p«hunter2» db",
    "mysqldump --password=«hunter2» db",
    "redis-cli -h host -a «hunter2» ping",
    "docker login -u alice -p «hunter2» registry",
    "plink -pw «hunter2» host",
    "zip -P «hunter2» a.zip a",
    "ldapsearch -D cn=admin -w «hunter2»",
    "openssl rsa -passin pass:«hunter2» -in a.pem",
    // URLs.
    "python train.py s3://alice:«hunter2»@host/bucket",
    "python train.py postgres://alice:«hun/ter2»@host:5432/db",
    "python train.py postgresql+psycopg2://alice:«hun@ter2»@host/db",
    "python train.py --db mysql://alice:«1234/5@6»@host/db",
    "python train.py redis://:«hunter2»@host:6379/0",
    "python train.py mongodb+srv://alice:«p?a#s/s»@cluster.example.net",
    "git clone https://«{A20}»@github.com/org/repo.git",
    "git clone https://x-access-token:«{A20}»@github.com/org/repo.git",
    "python train.py https://me@corp.com:«hunter2»@host/x",
    "python train.py https://h/p?a=1&X-Amz-Signature=«{X64}»&b=2",
    "python train.py https://h/p?api_key=«hunter2»",
    "azcopy copy https://a.blob.core.windows.net/c?sv=2022&se=2030&sig=«{A30}%2B{A9}%3D»",
    "rsync alice:«hunter2»@host::module /x",
    "export http_proxy=http://alice:«hunter2»@proxy:3128",
    // Headers.
    "curl -H Authorization:·Basic·«YWxpY2U6aHVudGVyMg==»",
    "curl -H Authorization:·Bearer·«hunter2hunter2»",
    "curl -H X-Api-Key:·«hunter2»",
    "curl -HX-Api-Key:·«hunter2»",
    "curl --header Cookie:·«a=b;·session=c»",
    "curl --header=Authorization:·Basic·«YWxpY2U6aHVudGVyMg==»",
    "curl -H PRIVATE-TOKEN:·«hunter2»",
    "curl -H X-Vault-Token:·«hunter2»",
    "curl -H Proxy-Authorization:·Basic·«YWxpY2U6aHVudGVyMg==»",
    // Connection strings.
    "python train.py --conn DefaultEndpointsProtocol=https;AccountName=x;AccountKey=«{B86}==»;EndpointSuffix=core.windows.net",
    "python train.py Server=db;User·Id=sa;Password=«two·words»;Encrypt=true",
    "python train.py --conn=Endpoint=sb://x/;SharedAccessKeyName=Root;SharedAccessKey=«{B43}=»",
    "python train.py host=db·user=x·password='«a·b»'",
    // Within code, scripts and JSON.
    "python -c login(token='«hunter2»');·train(lr=1)",
    "python -c login(password·=·\"«a·b»\")",
    "python -c os.environ[\"HF_TOKEN\"]=\"«hunter2»\"",
    "python -c import·wandb;·wandb.login(\"«{X40}»\")",
    "bash -c HF_TOKEN=«hunter2»·python·train.py",
    "bash -c python·train.py·--password·'«two·words»'·--lr·1",
    "bash -c curl·-u·alice:«hunter2»·https://host",
    "bash -c sshpass·-p·«hunter2»·ssh·host",
    "bash -c curl·-H·\"Authorization:·Basic·«YWxpY2U6aHVudGVyMg==»\"·https://host",
    "python train.py --config {\"db_pass\":·\"«a·b»\",·\"lr\":·1}",
    "python train.py --config {\"headers\":{\"X-Api-Key\":\"«hunter2»\"}}",
    "python train.py --config {\\\"password\\\":\\\"«hunter2»\\\"}",
    "python train.py --config password:·«hunter2»",
    // By shape.
    "x «AKIA{U16}»",
    "x a=«ASIA{U16}»",
    "x «wJal{A6}/K7MD{A6}/bPx{A9}EXAMPL»",
    "x «ghp_{A36}»",
    "x «github_pat_{A22}_{A59}»",
    "x «glpat-{A20}»",
    "x «xoxb-{D12}-{D12}-{A24}»",
    "x https://hooks.slack.com/services/«T{U8}/B{U8}/{A24}»",
    "x «AIza{A35}»",
    "x «ya29.{A40}»",
    "x «hf_{A34}»",
    "x «wandb_v1_{A40}»",
    "x «sk-{A48}»",
    "x «sk-ant-api03-{A80}»",
    "x «sk-proj-{A80}»",
    "x «sk_live_{A24}»",
    "x «rk_test_{A24}»",
    "x «npm_{A36}»",
    "x «pypi-AgEIcHlwaS5vcmc{A40}»",
    "x «eyJhbGciOiJIUzI1NiJ9.{A30}.{A43}»",
    "x «SG.{A22}.{A43}»",
    "x «dapi{X32}»",
    "x «hvs.{A24}»",
    "x «dop_v1_{X64}»",
    "x «dckr_pat_{A27}»",
    "x «gsk_{A52}»",
    "x «r8_{A37}»",
    "x «nvapi-{A64}»",
    "x «lsv2_pt_{X32}_{X10}»",
    "x «glsa_{A32}_{X8}»",
    "x «{D10}:AA{A33}»",
    "x «shpat_{X32}»",
    "x «ATATT3x{A60}»",
    "x -----BEGIN·RSA·PRIVATE·KEY-----\\n«{B64}»\\n-----END·RSA·PRIVATE·KEY-----",
    "x -----BEGIN·OPENSSH·PRIVATE·KEY-----·«{B64}»",
    // By chance alone.
    "x --value «{A32}»",
    "x value=«{A40}»",
    "x «{A28}==»",
];

const INNOCENT: &[&str] = &[
    "python train.py",
    "python -u train.py --lr 0.1",
    "python -m torch.distributed.run --nproc-per-node=8 train.py",
    "torchrun --standalone --nproc_per_node=4 train.py --batch-size 32",
    "torchrun --nnodes=2 --node-rank=0 --rdzv-id=job42 --rdzv-backend=c10d --rdzv-endpoint=node1:29500 train.py",
    "torchrun --rdzv-endpoint 10.0.0.1:29400 --master-port 29500 train.py",
    "python -m accelerate.commands.launch --num_processes 8 --mixed_precision bf16 run.py",
    "accelerate launch --config_file fsdp.yaml train.py --seed 42",
    "deepspeed --num_gpus 8 train.py --deepspeed ds_config.json",
    "python train.py optimizer.lr=1e-3",
    "python train.py trainer.pin_memory=True",
    "python train.py trainer.max_epochs=3 model.tokenizer=gpt2",
    "python train.py +trainer.fast_dev_run=true ~callbacks.early_stopping",
    "python train.py hydra.run.dir=outputs/2024-01-01/12-00-00",
    "python train.py --pin-memory",
    "python train.py --pin-memory --epochs 3",
    "python train.py --pin-memory true",
    "python train.py --pin_memory=False",
    "python train.py --pass-rate 0.5",
    "python train.py --passes 3",
    "python train.py --num-passes 12",
    "python train.py --multi-pass 2",
    "python train.py --bypass lora",
    "python train.py --tokenizer bert-base",
    "python train.py --tokenizer meta-llama/Llama-3.1-8B",
    "python train.py --max-tokens 512",
    "python train.py --max_new_tokens=1024",
    "python train.py --pad-token [PAD]",
    "python train.py --pad_token <pad>",
    "python train.py --eos_token_id 2",
    "python train.py --token <s>",
    "python train.py --tokens-per-batch 4096",
    "python train.py --num-image-token 256",
    "python train.py --author alice",
    "python train.py --authors Alice·and·Bob",
    "python train.py --use-auth-token --lr 1",
    "python train.py --use_auth_token True",
    "python train.py --token-file /run/secrets/hf",
    "python train.py --password-file=/run/secrets/db",
    "python train.py --key-dim 64 --num-key-value-heads 8",
    "python train.py --img-key jpg --caption-key txt",
    "python train.py --csv-img-key filepath --csv-caption-key title",
    "python train.py --sort-key loss --group-keys loss,accuracy",
    "python train.py --state-dict-key model_ema",
    "python train.py --ssl-key /etc/ssl/host.key",
    "python train.py --session run",
    "python train.py --auth none",
    "python train.py --auth-method kerberos",
    "python train.py --api-url https://api.example.com/v1",
    "python train.py --signature v4",
    "python train.py --keyboard us",
    "python train.py --monkey-patch",
    "python train.py --compat 1",
    "python train.py --secretary-problem 10",
    "python train.py --cookiecutter template",
    "python train.py --cpu-pin 0-3",
    "python train.py --lr -1e-4 --wd -0.1",
    "python train.py --commit {X40}",
    "python train.py --git-sha={X40}",
    "python train.py --revision {X40} --model bert",
    "python train.py checkpoint_hash={X40}",
    "python train.py --resume /ckpt/{X40}/model.pt",
    "python train.py --resume-from /ckpt/step_1000/{X64}.safetensors",
    "python train.py ~/.cache/huggingface/hub/models--bert/snapshots/{X40}/config.json",
    "git checkout {X40}",
    "python train.py --run-id 8d2c0b1e-6f3a-4b5c-9d8e-7f6a5b4c3d2e",
    "python train.py --gpu GPU-8d2c0b1e-6f3a-4b5c-9d8e-7f6a5b4c3d2e",
    "docker run --gpus all pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime python train.py",
    "docker run nvcr.io/nvidia/pytorch@sha256:{X64} python train.py",
    "docker run --user 1000:1000 -p 8080:80 image",
    "docker run -v /data:/data:ro -w /work image",
    "pip install git+https://github.com/org/repo@v1.2.3",
    "pip install git+ssh://git@github.com/org/repo.git@{X40}",
    "python train.py --data s3://bucket/train/{000..999}.tar",
    "python train.py --data gs://bucket/path@2024/x",
    "python train.py --url http://localhost:8080/pkg@1.0.0/x",
    "python train.py --url https://cdn.example.com/npm/pkg@1.0.0",
    "python train.py --url https://medium.com/@alice/post",
    "python train.py --endpoint tcp://node1:29500",
    "python train.py --init-method tcp://10.0.0.1:23456?world_size=2&rank=0",
    "python train.py --model Qwen2VLForConditionalGeneration",
    "python train.py --model Meta-Llama-3.1-8B-Instruct-GPTQ-INT4",
    "python train.py --run-name resnet50_imagenet_bs256_lr0.1_20240101-120000",
    "python train.py --name MyLightningModuleWithEMA2AndAMP",
    "python -c import·torch;·print(torch.__version__)",
    "python -c from·x·import·y;·y(lr=1e-3,·tokenizer='gpt2')",
    "python -c for·key,·value·in·d.items():·print(key,·value)",
    "python -c try:\n··f()\nexcept·E:·pass",
    "python -c f(token=None,·use_auth_token=False)",
    "python -m pytest tests/test_password.py -k token",
    "python -m http.server 8000",
    "gunicorn app.auth:app -w 4 -b 0.0.0.0:8000",
    "uvicorn server.session:create --factory",
    "bash -c python·train.py·--lr·0.1·&&·echo·'all·done'",
    "bash -c echo·don't·stop;·python·train.py",
    "bash -c cd·/work·&&·torchrun·--nproc-per-node=2·train.py·2>&1·|·tee·log.txt",
    "sh -c mkdir·-p·/out/{a,b}·&&·cp·a·b",
    "srun -p gpu -u --ntasks=8 python train.py",
    "mpirun -np 8 -x LD_LIBRARY_PATH -x PATH=/usr/bin:/bin python train.py",
    "env OMP_NUM_THREADS=4 PWD=/home/alice OLDPWD=/tmp PYTHONPATH=. python train.py",
    "ssh -p 2222 alice@node1 python train.py",
    "rsync -a host:/data/x /data/x",
    "python train.py --exclude basic·classification·of·tokens",
    "python train.py --prompt The·secret·of·the·pass·is:·a·key",
    "python train.py --dataset wikitext --subset wikitext-103-raw-v1",
    "python train.py --augment RandomHorizontalFlip,ColorJitter,Normalize",
    "python train.py --class-weights 0.1,0.9 --betas 0.9,0.999",
    "python train.py --image-size=224x224 --crop=0.875:1.0",
    "python train.py --rendezvous file:///tmp/rdzv",
    "/root/.cache/uv/archive-v0/{A21}/bin/python train.py",
    "pt_main_thread",
    "[rank0]:·train.py·epoch·3/10·loss=0.123",
    "ray::RolloutWorker.sample()",
    "python train.py --config {\"lr\":·0.1,·\"tokenizer\":·\"gpt2\",·\"max_tokens\":·5}",
    "python train.py --json {\"optimizer\":{\"type\":\"AdamW\",\"lr\":1e-3},\"pin_memory\":true}",
    "python train.py --loss-token-weights=1,2,3 --mask-token-prob=0.15",
    "jupyter-lab --port=8888 --notebook-dir=/work",
    "python train.py --logger.wandb.project=my-project --logger.wandb.entity=team",
    "python train.py --tag v1.2.3+cu124 --torch 2.4.0+cpu",
    "python train.py --ratio 16:9 --time 12:30:00",
    "python train.py --password",
    "python train.py model=vit/base,patch16@224",
];

/// The text with its placeholders filled, each differently.
fn filled(text: &str) -> String {
    const KINDS: [(char, &str); 5] = [
        ('A', "aB3dE5gHi7Jk2LmN9oPqR4sTuV8wXyZ1"),
        ('X', "0a1b9c8d7e6f5a4b3c2d1e0f"),
        ('U', "A7B2C9D4E1F8G3H6"),
        ('D', "7305918264"),
        ('B', "aB3d+5gHi7Jk/LmN9oPqR4sTuV8wXyZ1"),
    ];
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let place = rest[1..].chars().next().and_then(|letter| {
            let end = rest.find('}')?;
            let length: usize = rest.get(2..end)?.parse().ok()?;
            let (_, alphabet) = KINDS.iter().find(|(kind, _)| *kind == letter)?;
            Some((end, alphabet.chars().cycle().skip(at % 7).take(length)))
        });
        match place {
            Some((end, characters)) => {
                filled.extend(characters);
                rest = &rest[end + 1..];
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}

fn arguments(text: &str) -> Vec<String> {
    text.split(' ')
        .map(|argument| argument.replace('·', " ").replace(['«', '»'], ""))
        .collect()
}

#[test]
fn a_hundred_secrets_are_hidden() {
    assert!(SECRETS.len() >= 100, "{}", SECRETS.len());
    let mut leaks = Vec::new();
    for case in SECRETS {
        let text = filled(case);
        let secret = text.split(['«', '»']).nth(1).unwrap().replace('·', " ");
        let redacted = Redaction::On.command(&arguments(&text));
        let shown = redacted.join("\u{1f}");
        // Not a part of it, either.
        let parts = secret.split([' ', '@', '/']).filter(|part| part.len() > 3);
        let leaks_part = parts.clone().any(|part| shown.contains(part));
        if leaks_part || shown.contains(&secret) || !shown.contains(REDACTED) {
            leaks.push(format!("{text}\n    {redacted:?}"));
        }
        assert_eq!(Redaction::Off.command(&arguments(&text)), arguments(&text));
    }
    assert!(leaks.is_empty(), "{}:\n{}", leaks.len(), leaks.join("\n"));
}

#[test]
fn a_hundred_innocent_command_lines_stay_as_they_are() {
    assert!(INNOCENT.len() >= 100, "{}", INNOCENT.len());
    let mut changed = Vec::new();
    for case in INNOCENT {
        let given = arguments(&filled(case));
        let redacted = Redaction::On.command(&given);
        if redacted != given {
            changed.push(format!("{given:?}\n    {redacted:?}"));
        }
    }
    assert!(
        changed.is_empty(),
        "{}:\n{}",
        changed.len(),
        changed.join("\n")
    );
}

#[test]
fn what_is_not_secret_is_kept_beside_what_is() {
    for (given, wanted) in [
        ("x --api-key abc --lr 1", "x --api-key <redacted> --lr 1"),
        ("x --token --lr 1", "x --token <redacted> 1"),
        ("env K_TOKEN=abc LR=1", "env K_TOKEN=<redacted> LR=1"),
        ("x s3://u:hunter2@host/b", "x s3://<redacted>@host/b"),
        (
            "x https://h/p?a=1&X-Amz-Signature=hunter2hunter2&b=2",
            "x https://h/p?a=1&X-Amz-Signature=<redacted>&b=2",
        ),
        (
            "python -c login(token='hunter2');·train(lr=1)",
            "python -c login(token='<redacted>');·train(lr=1)",
        ),
        (
            "x -H Authorization:·Bearer·hunter2hunter2",
            "x -H Authorization:·Bearer·<redacted>",
        ),
        (
            "x AccountName=a;AccountKey=abcdefgh==;Suffix=b",
            "x AccountName=a;AccountKey=<redacted>;Suffix=b",
        ),
        (
            "bash -c python·t.py·--password·'a·b'·--lr·1",
            "bash -c python·t.py·--password·'<redacted>'·--lr·1",
        ),
        (
            "curl -u alice:hunter2 https://h",
            "curl -u alice:<redacted> https://h",
        ),
        (
            "sshpass -p hunter2 ssh -p 22 host",
            "sshpass -p <redacted> ssh -p 22 host",
        ),
    ] {
        assert_eq!(
            Redaction::On.command(&arguments(given)),
            arguments(wanted),
            "{given}"
        );
    }
}

#[test]
fn variables() {
    let on = Redaction::On;
    for (name, value) in [
        ("token", "hunter2"),
        ("password", "hunter2"),
        ("pin", "1234"),
        ("api_key", "hunter2"),
        ("x", &*filled("AKIA{U16}")),
        ("x", &*filled("{A32}")),
        ("url", "postgres://a:b/c@d"),
    ] {
        assert!(on.value(name, value).contains(REDACTED), "{name}={value}");
        assert_eq!(Redaction::Off.value(name, value), value);
    }
    for (name, value) in [
        ("key", "layer1.0.weight"),
        ("key", "epoch"),
        ("pad_token", "[PAD]"),
        ("token", "7"),
        ("name", "resnet50"),
        ("path", "/data/imagenet/train"),
        ("text", "the pass of the key"),
        ("url", "https://host:8080/x"),
    ] {
        assert_eq!(on.value(name, value), value, "{name}");
    }
}

proptest! {
    #[test]
    fn a_secret_flag_never_leaks(name in "[a-z]{0,6}[-_](token|password|api-key|secret|pass|pwd)", value in "[A-Za-z0-9+/ -]{12,40}") {
        prop_assume!(suspicion(&name) > Suspicion::Possible && !is_switch(&name));
        let joined = Redaction::On.command(&[format!("--{name}={value}")]).concat();
        prop_assert!(!joined.contains(&value));
        let apart = Redaction::On.command(&[format!("--{name}"), value.clone()]).concat();
        prop_assert!(!apart.contains(&value));
    }

    #[test]
    fn any_text_is_survived(text in "\\PC{0,200}") {
        let shown = Redaction::On.command(&[text.as_str(), "x"]);
        prop_assert_eq!(shown.len(), 2);
        // What is hidden is replaced: nothing is longer than a sign for each of its letters.
        prop_assert!(shown[1] == "x" || shown[1].chars().count() <= 16, "{:?}", shown);
    }

    /// Bytes that come close to secrets.
    #[test]
    fn any_bytes_are_survived(pieces in proptest::collection::vec(prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..12),
        proptest::sample::select(vec!["://", "@", ":", "=", "\"", "'", "\\", " ", "--pass", "-u", "-p", "Authorization: ",
            "password", "é", "-----BEGIN PRIVATE KEY-----", ";", "%", "{", "sshpass", "\u{0}", "-", "eyJ"])
            .prop_map(|text| text.as_bytes().to_vec()),
    ], 0..30)) {
        let bytes = pieces.concat();
        let text = String::from_utf8_lossy(&bytes);
        let words: Vec<&str> = text.split('\0').collect();
        let redacted = Redaction::On.command(&words);
        prop_assert_eq!(redacted.len(), words.len());
        let _ = (Redaction::On.text(&text), Redaction::On.value("key", &text), Redaction::On.value(&text, "key"));
    }
}
