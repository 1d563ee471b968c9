-- `tenure.enqueue(...)`: what `create_job` does, as one function for producers in any language.
-- Theory of operation. It checks, hashes and writes as rules/creation.py and procedures/enqueue.py do, in the caller's
-- transaction: it never commits and tells nobody, and a savepoint undoes a failed call. A refusal has an SQLSTATE that
-- says what to do next, and the stable code as its DETAIL:
--     TNINV  Invalid: fix the call          TNCON  Conflict: the key has another meaning
--     TNREF  Refused: the state says no     TNUNA  Unavailable: run it again
-- All others are PostgreSQL's own.
-- The functions whose names begin with `enqueue_` are its parts and not for callers. This file is ASCII and makes all other
-- characters with chr(), because a database of another encoding must be able to take it. Backslashes stand in E'' texts
-- only: they mean the same whatever standard_conforming_strings says.

-- Give up on a call.
CREATE FUNCTION tenure.enqueue_refuse(code text, problem text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'TNINV', MESSAGE = problem, DETAIL = code,
        HINT = 'Correct the call; nothing was written.';
END $$;

-- Write where something is: `$.lines[3]["odd key"]`, in ASCII and never long. A step is `.` and a key, or `#` and a position.
CREATE FUNCTION tenure.enqueue_path(steps text[]) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    step text;
    name text;
    letter text;
    point integer;
    shown text;
    whole text := '$';
BEGIN
    FOREACH step IN ARRAY steps LOOP
        name := substr(step, 2);
        IF left(step, 1) = '#' THEN
            whole := whole || '[' || name || ']';
        ELSIF name COLLATE "C" ~ '^[A-Za-z_][A-Za-z0-9_]{0,39}$' THEN
            whole := whole || '.' || name;
        ELSE
            shown := '';
            FOREACH letter IN ARRAY string_to_array(left(name, 40), NULL) LOOP
                point := ascii(letter);
                shown := shown || CASE
                    WHEN point > 65535 THEN E'\\u' || to_hex(55232 + (point >> 10)) || E'\\u' || to_hex(56320 + (point & 1023))
                    WHEN point > 126 THEN E'\\u' || lpad(to_hex(point), 4, '0')
                    ELSE trim(BOTH '"' FROM to_json(letter)::text)
                END;
            END LOOP;
            whole := whole || '["' || replace(shown, E'\\udbff\\udfff\\udbff\\udffe', E'\\u')
                || CASE WHEN length(name) > 40 THEN '...' ELSE '' END || '"]';
        END IF;
    END LOOP;
    RETURN CASE WHEN length(whole) > 160 THEN left(whole, 160) || '...' ELSE whole END;
END $$;

-- Give up on a payload for what is at one place in it; `content` is the text there.
CREATE FUNCTION tenure.enqueue_refuse_at(code text, steps text[], content text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    place text := tenure.enqueue_path(steps);
BEGIN
    IF code IN ('KEY', 'TEXT') THEN
        place := place || CASE code WHEN 'KEY' THEN ' is a key and' ELSE '' END;
        IF strpos(content, chr(1114111) || chr(1114110) || '0000') > 0 THEN
            RETURN tenure.enqueue_refuse('NUL_CHARACTER', place || ' holds a NUL character, which databases refuse');
        END IF;
        RETURN tenure.enqueue_refuse('INVALID_UNICODE', place || ' holds half of a character (a lone surrogate)');
    END IF;
    RETURN tenure.enqueue_refuse(code, place || CASE code
        WHEN 'NON_FINITE_NUMBER' THEN ' is beyond every double; send it as text'
        WHEN 'NUMBER_TOO_LONG' THEN ' is an integer of more than 4000 digits'
        WHEN 'DUPLICATE_KEY' THEN ' is there twice'
        ELSE ' is nested more than 100 levels deep'
    END);
END $$;

-- Write a number that has a point or an exponent as RFC 8785 does, with the fewest digits that read back as the same double;
-- NULL where no double is so large. Asks for extra_float_digits of at least 1.
CREATE FUNCTION tenure.enqueue_number(token text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    number double precision;
    shown text;
    minus text;
    digits text;
    shorter text;
    power text;
    point integer;  -- where the decimal point is, counted from before the first digit
BEGIN
    IF length(token) <= 40 AND token !~ '[eE][+-]?[0-9]{3}' THEN
        number := token::double precision;
    ELSE
        BEGIN
            number := token::double precision;
        EXCEPTION WHEN numeric_value_out_of_range THEN
            -- Too large, or nearer to zero than to the smallest double: only the text tells which.
            digits := ltrim(substring(token FROM '^-?([0-9]*)'), '0');
            power := coalesce(substring(token FROM '[eE]([+-]?[0-9]+)$'), '0');
            shorter := ltrim(power, '+-0');
            IF length(shorter) > 9 THEN
                point := CASE left(power, 1) WHEN '-' THEN -1 ELSE 1 END;
            ELSE
                point := power::integer + CASE digits
                    WHEN '' THEN -length(substring(token FROM '[.](0*)'))
                    ELSE length(digits)
                END;
            END IF;
            RETURN CASE WHEN point < 0 THEN '0' END;
        END;
    END IF;
    shown := number::text;
    IF number = 0 THEN
        RETURN '0';
    ELSIF strpos(shown, 'e') = 0 THEN
        RETURN shown;
    END IF;
    minus := CASE WHEN number < 0 THEN '-' ELSE '' END;
    digits := replace(ltrim(split_part(shown, 'e', 1), '-'), '.', '');
    point := split_part(shown, 'e', 2)::integer + 1;
    -- PostgreSQL does not write the middle between two doubles, though it reads it as the even one of them: 1e23 is written
    -- as 9.999999999999999e22. A middle has so few digits only in this range, and stands next to what was written.
    IF point BETWEEN 16 AND 41 AND length(digits) > 1 THEN
        FOR shorter IN SELECT (left(digits, -1)::bigint + step)::text FROM generate_series(0, 1) AS step LOOP
            IF (shorter || 'e' || point - length(digits) + 1)::double precision = abs(number) THEN
                point := point + length(shorter) - length(digits) + 1;
                digits := rtrim(shorter, '0');
                EXIT;
            END IF;
        END LOOP;
    END IF;
    RETURN minus || CASE
        WHEN point BETWEEN length(digits) AND 21 THEN rpad(digits, point, '0')
        WHEN point BETWEEN 1 AND 21 THEN left(digits, point) || '.' || substr(digits, point + 1)
        WHEN point BETWEEN -5 AND 0 THEN '0.' || repeat('0', -point) || digits
        ELSE left(digits, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END
            || CASE WHEN point > 0 THEN 'e+' ELSE 'e-' END || abs(point - 1)
    END;
END $$;

-- Write a list or an object in canonical form: members in the order of the UTF-16 code units of their names, no white space.
-- The outermost object has a control character, which no JSON text holds, where the member `execution` belongs.
CREATE FUNCTION tenure.enqueue_canonical(node json, steps text[], marked boolean) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    before text;
    after text;
    names text[];
BEGIN
    IF cardinality(steps) >= 100 THEN
        RETURN tenure.enqueue_refuse_at('TOO_DEEP', steps);
    END IF;
    IF json_typeof(node) = 'array' THEN
        SELECT string_agg(tenure.enqueue_value(e.value, e.raw, steps, '#' || e.nth - 1, marked), ',' ORDER BY e.nth)
        INTO after
        FROM (
            SELECT i.value, i.value::text AS raw, i.nth
            FROM json_array_elements(node) WITH ORDINALITY AS i (value, nth) OFFSET 0
        ) e;
        RETURN '[' || coalesce(after, '') || ']';
    END IF;
    -- UTF-8 sorts as UTF-16 does, but for what begins with the bytes EE and EF: that comes after what begins with F0 to F4.
    -- So bytes are made characters, and those two are moved behind.
    -- Sorted once, below, and not by each aggregate for itself: a sort costs more than the small object that it sorts.
    SELECT string_agg(m.member, ',') FILTER (WHERE cardinality(steps) = 0 AND m.name < 'execution'),
        string_agg(m.member, ',') FILTER (WHERE cardinality(steps) > 0 OR m.name >= 'execution'),
        array_agg(m.name)
    INTO before, after, names
    FROM (
        SELECT CASE
                WHEN marked AND strpos(e.key, chr(1114111) || chr(1114110)) > 0
                    THEN tenure.enqueue_refuse_at('KEY', steps || ('.' || e.key), e.key)
                ELSE to_json(e.key)::text
            END || ':' || tenure.enqueue_value(e.value, e.raw, steps, '.' || e.key, marked) AS member,
            CASE WHEN octet_length(e.key) = length(e.key) THEN e.key
                ELSE translate(convert_from(convert_to(e.key, 'UTF8'), 'LATIN1'), chr(238) || chr(239), chr(245) || chr(246))
            END COLLATE "C" AS name
        FROM (SELECT i.key, i.value, i.value::text AS raw FROM json_each(node) AS i OFFSET 0) e
        ORDER BY name
    ) m;
    FOR nth IN 2 .. coalesce(cardinality(names), 0) LOOP
        IF names[nth] = names[nth - 1] THEN
            RETURN tenure.enqueue_refuse_at('DUPLICATE_KEY', steps || ('.' || (
                SELECT min(e.key) FROM json_each(node) AS e GROUP BY e.key COLLATE "C" HAVING count(*) > 1 LIMIT 1
            )));
        END IF;
    END LOOP;
    RETURN '{' || CASE WHEN cardinality(steps) = 0 THEN coalesce(before, '') || E'\x01' ELSE '' END
        || coalesce(after, '') || '}';
END $$;

-- Write one value in canonical form. `raw` is its text, `step` the last step of its path, `marked` that half characters and
-- NUL in the document were made visible. A single expression, so that it becomes a part of the statement that calls it.
CREATE FUNCTION tenure.enqueue_value(value json, raw text, steps text[], step text, marked boolean) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE ascii(raw)
    WHEN 34 THEN CASE  -- a quote
        WHEN marked AND strpos(raw, chr(1114111) || chr(1114110)) > 0 THEN tenure.enqueue_refuse_at('TEXT', steps || step, raw)
        WHEN strpos(raw, E'\\') = 0 THEN raw
        ELSE to_json(value #>> '{}')::text
    END
    WHEN 91 THEN tenure.enqueue_canonical(value, steps || step, marked)
    WHEN 123 THEN tenure.enqueue_canonical(value, steps || step, marked)
    WHEN 102 THEN raw  -- false, null, true
    WHEN 110 THEN raw
    WHEN 116 THEN raw
    ELSE CASE
        WHEN strpos(raw, '.') > 0 OR strpos(raw, 'e') > 0 OR strpos(raw, 'E') > 0
            THEN coalesce(tenure.enqueue_number(raw), tenure.enqueue_refuse_at('NON_FINITE_NUMBER', steps || step))
        WHEN length(ltrim(raw, '-')) > 4000 THEN tenure.enqueue_refuse_at('NUMBER_TOO_LONG', steps || step)
        WHEN raw = '-0' THEN '0'
        ELSE raw
    END
END
$$;

-- Say whether a character can be printed, as Python's str.isprintable of Unicode 14 does. The list has the points at which the
-- answer changes; a test compares it with Python's, character by character.
CREATE FUNCTION tenure.enqueue_printable(point integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
SELECT width_bucket(point, ARRAY[
        0, 32, 127, 161, 173, 174, 888, 890, 896, 900, 907, 908, 909, 910, 930, 931, 1328, 1329, 1367, 1369, 1419, 1421,
        1424, 1425, 1480, 1488, 1515, 1519, 1525, 1542, 1564, 1565, 1757, 1758, 1806, 1808, 1867, 1869, 1970, 1984, 2043,
        2045, 2094, 2096, 2111, 2112, 2140, 2142, 2143, 2144, 2155, 2160, 2191, 2200, 2274, 2275, 2436, 2437, 2445, 2447,
        2449, 2451, 2473, 2474, 2481, 2482, 2483, 2486, 2490, 2492, 2501, 2503, 2505, 2507, 2511, 2519, 2520, 2524, 2526,
        2527, 2532, 2534, 2559, 2561, 2564, 2565, 2571, 2575, 2577, 2579, 2601, 2602, 2609, 2610, 2612, 2613, 2615, 2616,
        2618, 2620, 2621, 2622, 2627, 2631, 2633, 2635, 2638, 2641, 2642, 2649, 2653, 2654, 2655, 2662, 2679, 2689, 2692,
        2693, 2702, 2703, 2706, 2707, 2729, 2730, 2737, 2738, 2740, 2741, 2746, 2748, 2758, 2759, 2762, 2763, 2766, 2768,
        2769, 2784, 2788, 2790, 2802, 2809, 2816, 2817, 2820, 2821, 2829, 2831, 2833, 2835, 2857, 2858, 2865, 2866, 2868,
        2869, 2874, 2876, 2885, 2887, 2889, 2891, 2894, 2901, 2904, 2908, 2910, 2911, 2916, 2918, 2936, 2946, 2948, 2949,
        2955, 2958, 2961, 2962, 2966, 2969, 2971, 2972, 2973, 2974, 2976, 2979, 2981, 2984, 2987, 2990, 3002, 3006, 3011,
        3014, 3017, 3018, 3022, 3024, 3025, 3031, 3032, 3046, 3067, 3072, 3085, 3086, 3089, 3090, 3113, 3114, 3130, 3132,
        3141, 3142, 3145, 3146, 3150, 3157, 3159, 3160, 3163, 3165, 3166, 3168, 3172, 3174, 3184, 3191, 3213, 3214, 3217,
        3218, 3241, 3242, 3252, 3253, 3258, 3260, 3269, 3270, 3273, 3274, 3278, 3285, 3287, 3293, 3295, 3296, 3300, 3302,
        3312, 3313, 3315, 3328, 3341, 3342, 3345, 3346, 3397, 3398, 3401, 3402, 3408, 3412, 3428, 3430, 3456, 3457, 3460,
        3461, 3479, 3482, 3506, 3507, 3516, 3517, 3518, 3520, 3527, 3530, 3531, 3535, 3541, 3542, 3543, 3544, 3552, 3558,
        3568, 3570, 3573, 3585, 3643, 3647, 3676, 3713, 3715, 3716, 3717, 3718, 3723, 3724, 3748, 3749, 3750, 3751, 3774,
        3776, 3781, 3782, 3783, 3784, 3790, 3792, 3802, 3804, 3808, 3840, 3912, 3913, 3949, 3953, 3992, 3993, 4029, 4030,
        4045, 4046, 4059, 4096, 4294, 4295, 4296, 4301, 4302, 4304, 4681, 4682, 4686, 4688, 4695, 4696, 4697, 4698, 4702,
        4704, 4745, 4746, 4750, 4752, 4785, 4786, 4790, 4792, 4799, 4800, 4801, 4802, 4806, 4808, 4823, 4824, 4881, 4882,
        4886, 4888, 4955, 4957, 4989, 4992, 5018, 5024, 5110, 5112, 5118, 5120, 5760, 5761, 5789, 5792, 5881, 5888, 5910,
        5919, 5943, 5952, 5972, 5984, 5997, 5998, 6001, 6002, 6004, 6016, 6110, 6112, 6122, 6128, 6138, 6144, 6158, 6159,
        6170, 6176, 6265, 6272, 6315, 6320, 6390, 6400, 6431, 6432, 6444, 6448, 6460, 6464, 6465, 6468, 6510, 6512, 6517,
        6528, 6572, 6576, 6602, 6608, 6619, 6622, 6684, 6686, 6751, 6752, 6781, 6783, 6794, 6800, 6810, 6816, 6830, 6832,
        6863, 6912, 6989, 6992, 7039, 7040, 7156, 7164, 7224, 7227, 7242, 7245, 7305, 7312, 7355, 7357, 7368, 7376, 7419,
        7424, 7958, 7960, 7966, 7968, 8006, 8008, 8014, 8016, 8024, 8025, 8026, 8027, 8028, 8029, 8030, 8031, 8062, 8064,
        8117, 8118, 8133, 8134, 8148, 8150, 8156, 8157, 8176, 8178, 8181, 8182, 8191, 8208, 8232, 8240, 8287, 8304, 8306,
        8308, 8335, 8336, 8349, 8352, 8385, 8400, 8433, 8448, 8588, 8592, 9255, 9280, 9291, 9312, 11124, 11126, 11158,
        11159, 11508, 11513, 11558, 11559, 11560, 11565, 11566, 11568, 11624, 11631, 11633, 11647, 11671, 11680, 11687,
        11688, 11695, 11696, 11703, 11704, 11711, 11712, 11719, 11720, 11727, 11728, 11735, 11736, 11743, 11744, 11870,
        11904, 11930, 11931, 12020, 12032, 12246, 12272, 12284, 12289, 12352, 12353, 12439, 12441, 12544, 12549, 12592,
        12593, 12687, 12688, 12772, 12784, 12831, 12832, 42125, 42128, 42183, 42192, 42540, 42560, 42744, 42752, 42955,
        42960, 42962, 42963, 42964, 42965, 42970, 42994, 43053, 43056, 43066, 43072, 43128, 43136, 43206, 43214, 43226,
        43232, 43348, 43359, 43389, 43392, 43470, 43471, 43482, 43486, 43519, 43520, 43575, 43584, 43598, 43600, 43610,
        43612, 43715, 43739, 43767, 43777, 43783, 43785, 43791, 43793, 43799, 43808, 43815, 43816, 43823, 43824, 43884,
        43888, 44014, 44016, 44026, 44032, 55204, 55216, 55239, 55243, 55292, 63744, 64110, 64112, 64218, 64256, 64263,
        64275, 64280, 64285, 64311, 64312, 64317, 64318, 64319, 64320, 64322, 64323, 64325, 64326, 64451, 64467, 64912,
        64914, 64968, 64975, 64976, 65008, 65050, 65056, 65107, 65108, 65127, 65128, 65132, 65136, 65141, 65142, 65277,
        65281, 65471, 65474, 65480, 65482, 65488, 65490, 65496, 65498, 65501, 65504, 65511, 65512, 65519, 65532, 65534,
        65536, 65548, 65549, 65575, 65576, 65595, 65596, 65598, 65599, 65614, 65616, 65630, 65664, 65787, 65792, 65795,
        65799, 65844, 65847, 65935, 65936, 65949, 65952, 65953, 66000, 66046, 66176, 66205, 66208, 66257, 66272, 66300,
        66304, 66340, 66349, 66379, 66384, 66427, 66432, 66462, 66463, 66500, 66504, 66518, 66560, 66718, 66720, 66730,
        66736, 66772, 66776, 66812, 66816, 66856, 66864, 66916, 66927, 66939, 66940, 66955, 66956, 66963, 66964, 66966,
        66967, 66978, 66979, 66994, 66995, 67002, 67003, 67005, 67072, 67383, 67392, 67414, 67424, 67432, 67456, 67462,
        67463, 67505, 67506, 67515, 67584, 67590, 67592, 67593, 67594, 67638, 67639, 67641, 67644, 67645, 67647, 67670,
        67671, 67743, 67751, 67760, 67808, 67827, 67828, 67830, 67835, 67868, 67871, 67898, 67903, 67904, 67968, 68024,
        68028, 68048, 68050, 68100, 68101, 68103, 68108, 68116, 68117, 68120, 68121, 68150, 68152, 68155, 68159, 68169,
        68176, 68185, 68192, 68256, 68288, 68327, 68331, 68343, 68352, 68406, 68409, 68438, 68440, 68467, 68472, 68498,
        68505, 68509, 68521, 68528, 68608, 68681, 68736, 68787, 68800, 68851, 68858, 68904, 68912, 68922, 69216, 69247,
        69248, 69290, 69291, 69294, 69296, 69298, 69376, 69416, 69424, 69466, 69488, 69514, 69552, 69580, 69600, 69623,
        69632, 69710, 69714, 69750, 69759, 69821, 69822, 69827, 69840, 69865, 69872, 69882, 69888, 69941, 69942, 69960,
        69968, 70007, 70016, 70112, 70113, 70133, 70144, 70162, 70163, 70207, 70272, 70279, 70280, 70281, 70282, 70286,
        70287, 70302, 70303, 70314, 70320, 70379, 70384, 70394, 70400, 70404, 70405, 70413, 70415, 70417, 70419, 70441,
        70442, 70449, 70450, 70452, 70453, 70458, 70459, 70469, 70471, 70473, 70475, 70478, 70480, 70481, 70487, 70488,
        70493, 70500, 70502, 70509, 70512, 70517, 70656, 70748, 70749, 70754, 70784, 70856, 70864, 70874, 71040, 71094,
        71096, 71134, 71168, 71237, 71248, 71258, 71264, 71277, 71296, 71354, 71360, 71370, 71424, 71451, 71453, 71468,
        71472, 71495, 71680, 71740, 71840, 71923, 71935, 71943, 71945, 71946, 71948, 71956, 71957, 71959, 71960, 71990,
        71991, 71993, 71995, 72007, 72016, 72026, 72096, 72104, 72106, 72152, 72154, 72165, 72192, 72264, 72272, 72355,
        72368, 72441, 72704, 72713, 72714, 72759, 72760, 72774, 72784, 72813, 72816, 72848, 72850, 72872, 72873, 72887,
        72960, 72967, 72968, 72970, 72971, 73015, 73018, 73019, 73020, 73022, 73023, 73032, 73040, 73050, 73056, 73062,
        73063, 73065, 73066, 73103, 73104, 73106, 73107, 73113, 73120, 73130, 73440, 73465, 73648, 73649, 73664, 73714,
        73727, 74650, 74752, 74863, 74864, 74869, 74880, 75076, 77712, 77811, 77824, 78895, 82944, 83527, 92160, 92729,
        92736, 92767, 92768, 92778, 92782, 92863, 92864, 92874, 92880, 92910, 92912, 92918, 92928, 92998, 93008, 93018,
        93019, 93026, 93027, 93048, 93053, 93072, 93760, 93851, 93952, 94027, 94031, 94088, 94095, 94112, 94176, 94181,
        94192, 94194, 94208, 100344, 100352, 101590, 101632, 101641, 110576, 110580, 110581, 110588, 110589, 110591,
        110592, 110883, 110928, 110931, 110948, 110952, 110960, 111356, 113664, 113771, 113776, 113789, 113792, 113801,
        113808, 113818, 113820, 113824, 118528, 118574, 118576, 118599, 118608, 118724, 118784, 119030, 119040, 119079,
        119081, 119155, 119163, 119275, 119296, 119366, 119520, 119540, 119552, 119639, 119648, 119673, 119808, 119893,
        119894, 119965, 119966, 119968, 119970, 119971, 119973, 119975, 119977, 119981, 119982, 119994, 119995, 119996,
        119997, 120004, 120005, 120070, 120071, 120075, 120077, 120085, 120086, 120093, 120094, 120122, 120123, 120127,
        120128, 120133, 120134, 120135, 120138, 120145, 120146, 120486, 120488, 120780, 120782, 121484, 121499, 121504,
        121505, 121520, 122624, 122655, 122880, 122887, 122888, 122905, 122907, 122914, 122915, 122917, 122918, 122923,
        123136, 123181, 123184, 123198, 123200, 123210, 123214, 123216, 123536, 123567, 123584, 123642, 123647, 123648,
        124896, 124903, 124904, 124908, 124909, 124911, 124912, 124927, 124928, 125125, 125127, 125143, 125184, 125260,
        125264, 125274, 125278, 125280, 126065, 126133, 126209, 126270, 126464, 126468, 126469, 126496, 126497, 126499,
        126500, 126501, 126503, 126504, 126505, 126515, 126516, 126520, 126521, 126522, 126523, 126524, 126530, 126531,
        126535, 126536, 126537, 126538, 126539, 126540, 126541, 126544, 126545, 126547, 126548, 126549, 126551, 126552,
        126553, 126554, 126555, 126556, 126557, 126558, 126559, 126560, 126561, 126563, 126564, 126565, 126567, 126571,
        126572, 126579, 126580, 126584, 126585, 126589, 126590, 126591, 126592, 126602, 126603, 126620, 126625, 126628,
        126629, 126634, 126635, 126652, 126704, 126706, 126976, 127020, 127024, 127124, 127136, 127151, 127153, 127168,
        127169, 127184, 127185, 127222, 127232, 127406, 127462, 127491, 127504, 127548, 127552, 127561, 127568, 127570,
        127584, 127590, 127744, 128728, 128733, 128749, 128752, 128765, 128768, 128884, 128896, 128985, 128992, 129004,
        129008, 129009, 129024, 129036, 129040, 129096, 129104, 129114, 129120, 129160, 129168, 129198, 129200, 129202,
        129280, 129620, 129632, 129646, 129648, 129653, 129656, 129661, 129664, 129671, 129680, 129709, 129712, 129723,
        129728, 129734, 129744, 129754, 129760, 129768, 129776, 129783, 129792, 129939, 129940, 129995, 130032, 130042,
        131072, 173792, 173824, 177977, 177984, 178206, 178208, 183970, 183984, 191457, 194560, 195102, 196608, 201547,
        917760, 918000
    ]) % 2 = 0
$$;

-- Check a name of a job: see rules/creation.py, check_text.
CREATE FUNCTION tenure.enqueue_name(name text, value text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    IF btrim(value) <> '' AND length(value) <= 200 AND value COLLATE "C" ~ '^[ -~]+$' THEN
        RETURN value;
    ELSIF value IS NULL OR btrim(value, E' \t\n\x0b\f\r\x1c\x1d\x1e\x1f') = '' THEN
        RETURN tenure.enqueue_refuse('BAD_ARGUMENT', name || ' must be non-empty text');
    ELSIF length(value) > 200 THEN
        RETURN tenure.enqueue_refuse('BAD_ARGUMENT', name || ' has ' || length(value) || ' characters, the limit is 200');
    ELSIF EXISTS (SELECT FROM string_to_table(value, NULL) AS one WHERE NOT tenure.enqueue_printable(ascii(one))) THEN
        RETURN tenure.enqueue_refuse('BAD_ARGUMENT', name || ' holds a character that cannot be printed');
    END IF;
    RETURN value;
END $$;

-- Check a text of the execution envelope: see rules/envelope.py.
CREATE FUNCTION tenure.enqueue_said(name text, value text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    IF length(value) > 1000 THEN
        RETURN tenure.enqueue_refuse('ENVELOPE_VALUE', name || ' is longer than 1000 characters');
    ELSIF value COLLATE "C" ~ '[!-~]' THEN
        RETURN value;
    ELSIF NOT EXISTS (
        SELECT FROM string_to_table(value, NULL) AS one WHERE NOT ascii(one) = ANY(ARRAY[
            9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 133, 160, 5760, 8192, 8193, 8194, 8195, 8196, 8197, 8198, 8199, 8200, 8201,
            8202, 8232, 8233, 8239, 8287, 12288
        ])
    ) THEN
        RETURN tenure.enqueue_refuse('ENVELOPE_VALUE', name || ' is empty; give it text or leave it out');
    END IF;
    RETURN value;
END $$;

-- Create a job, or find the one that already has this key.
-- locks the key; another transaction that reserves the same key is waited for
-- writes authority (where the tenant is new), job_key, job, ready or deferred
CREATE FUNCTION tenure.enqueue(
    organization text,
    project text,
    idempotency_key text,
    kind text,
    payload json,
    kind_version integer DEFAULT 1,
    tenant text DEFAULT NULL,
    subject text DEFAULT NULL,
    queue text DEFAULT 'default',
    priority integer DEFAULT 0,
    max_attempts integer DEFAULT 3,
    backoff_base interval DEFAULT '30 seconds',
    lease_duration interval DEFAULT '60 seconds',
    scheduled_at timestamptz DEFAULT NULL,
    on_reconciled text DEFAULT NULL,
    on_declined text DEFAULT 'failed',
    actor text DEFAULT NULL,
    trace text DEFAULT NULL
) RETURNS TABLE (job_id uuid, created boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER ROWS 1
SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    owner text;
    sent text := payload::text;
    mark text;
    marks text;
    marked boolean := false;
    walked text;
    members text[];  -- in canonical form: those before the envelope, and those after it
    sealed text;  -- the envelope in canonical form
    payload_hash text;
    backoff_us numeric := extract(epoch FROM backoff_base) * 1000000;
    lease_us numeric := extract(epoch FROM lease_duration) * 1000000;
    due bigint;
    now_us bigint;
    clock_us bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    epoch bigint;
    id uuid;
    known record;
    checked text;
BEGIN
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported', MESSAGE =
            'tenure.enqueue needs a database with the encoding UTF8, this one has ' || getdatabaseencoding(),
            HINT = 'Create jobs with the library, or move to a database with UTF8.';
    END IF;
    -- The first thing that is wrong, in the order in which create_job looks.
    checked := tenure.enqueue_name('organization', organization);
    checked := tenure.enqueue_name('project', project);
    checked := tenure.enqueue_name('idempotency_key', idempotency_key);
    checked := tenure.enqueue_name('kind', kind);
    checked := tenure.enqueue_name('queue', queue);
    IF strpos(kind, ':') > 0 OR strpos(kind, '#') > 0 THEN
        checked := tenure.enqueue_refuse('BAD_ARGUMENT', 'a kind holds no '':'' or ''#'', they separate operation keys');
    END IF;
    IF subject IS NOT NULL THEN
        checked := tenure.enqueue_name('subject', subject);
    END IF;
    owner := organization;
    IF tenant IS NOT NULL THEN
        owner := tenure.enqueue_name('tenant', tenure.enqueue_said('tenant of the argument', tenant));
    END IF;
    checked := CASE
        WHEN kind_version IS NULL OR kind_version < 1
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'kind_version must be a whole number from 1')
        WHEN priority IS NULL OR priority NOT BETWEEN -32767 AND 32767
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'priority must be a whole number from -32767 to 32767')
        WHEN max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 10000
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'max_attempts must be a whole number from 1 to 10000')
        WHEN on_reconciled NOT IN ('complete', 'resume')
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'on_reconciled must be complete, resume or left out')
        WHEN on_declined IS NULL OR on_declined NOT IN ('failed', 'dead_letter')
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'on_declined must be failed or dead_letter')
        WHEN backoff_us IS NULL OR backoff_us NOT BETWEEN 1000 AND 3600000000
            THEN tenure.enqueue_refuse('BAD_DURATION', 'backoff_base must be from 1 millisecond to 1 hour')
        WHEN lease_us IS NULL OR lease_us NOT BETWEEN 100000 AND 604800000000
            THEN tenure.enqueue_refuse('BAD_DURATION', 'lease_duration must be from 100 milliseconds to 7 days')
        WHEN scheduled_at < timestamptz '0001-01-01 00:00:00+00' OR scheduled_at >= timestamptz '9999-01-01 00:00:00+00'
            THEN tenure.enqueue_refuse('BAD_INSTANT', 'scheduled_at must be in the years 1 to 9998')
    END;

    IF payload IS NULL OR json_typeof(payload) <> 'object' THEN
        checked := tenure.enqueue_refuse('PAYLOAD_INVALID', 'the payload must be a JSON object');
    ELSIF octet_length(sent) > 1048576 THEN
        checked := tenure.enqueue_refuse('PAYLOAD_TOO_LARGE', '$ has ' || octet_length(sent)
            || ' bytes, the limit is 1048576; store it elsewhere and pass a reference');
    ELSIF sent ~ E'\\\\u(0000|[dD][89a-fA-F])' THEN
        -- The server reads neither NUL nor half characters: two characters that mean nothing and the digits take the place
        -- of each, so that the walk below can say where it is. First an escaped backslash is spelt in another way, so that
        -- nothing behind one looks like them.
        mark := chr(1114111) || chr(1114110);
        marks := replace(translate(sent, chr(1114110), chr(1114109)), E'\\\\', E'\\u005c');
        marks := regexp_replace(marks, E'\\\\u(0000|[dD][89abAB][0-9a-fA-F]{2}(?!\\\\u[dD][c-fC-F]))', mark || E'\\1', 'g');
        marks := regexp_replace(marks, E'(?<!\\\\u[dD][89abAB][0-9a-fA-F]{2})\\\\u([dD][c-fC-F][0-9a-fA-F]{2})',
            mark || E'\\1', 'g');
        marked := strpos(marks, mark) > 0;
    END IF;
    walked := tenure.enqueue_canonical(CASE WHEN marked THEN marks::json ELSE payload END, '{}', marked);
    IF EXISTS (SELECT FROM json_object_keys(payload) AS one WHERE one IN ('execution', 'governance')) THEN
        checked := tenure.enqueue_refuse('RESERVED_KEY',
            'the payload has the reserved key execution or governance; pass actor and trace instead');
    END IF;
    members := string_to_array(substr(walked, 2, length(walked) - 2), E'\x01');
    payload_hash := 'v1:' || encode(sha256(convert_to('{"kind":' || to_json(kind)::text || ',"payload":{'
        || concat_ws(',', nullif(members[1], ''), nullif(members[2], '')) || '}}', 'UTF8')), 'hex');
    id := (lpad(to_hex(clock_us / 1000), 12, '0') || '7' || lpad(to_hex(clock_us % 1000 * 4096 / 1000), 3, '0')
        || substr(gen_random_uuid()::text, 20))::uuid;
    IF (actor IS NULL) <> (trace IS NULL) THEN
        checked := tenure.enqueue_refuse('ENVELOPE_VALUE',
            'give actor and trace together: with one of them no effect is dispatched');
    ELSIF actor IS NOT NULL THEN
        checked := tenure.enqueue_said('execution.actor', actor);
        checked := tenure.enqueue_said('execution.trace', trace);
        sent := CASE walked WHEN E'{\x01}' THEN '{' ELSE left(rtrim(sent, E' \t\n\r'), -1) || ',' END
            || '"execution":{"tenant":' || to_json(owner)::text || ',"organization":' || to_json(organization)::text
            || ',"project":' || to_json(project)::text || ',"job":"' || id || '","actor":' || to_json(actor)::text
            || ',"trace":' || to_json(trace)::text || '}}';
        sealed := '"execution":{"actor":' || to_json(actor)::text || ',"job":"' || id
            || '","organization":' || to_json(organization)::text || ',"project":' || to_json(project)::text
            || ',"tenant":' || to_json(owner)::text || ',"trace":' || to_json(trace)::text || '}';
        IF octet_length(sent) > 1048576 THEN
            checked := tenure.enqueue_refuse('PAYLOAD_TOO_LARGE', '$ has ' || octet_length(sent)
                || ' bytes, the limit is 1048576; store it elsewhere and pass a reference');
        END IF;
    END IF;

    INSERT INTO tenure.authority (tenant)
    SELECT owner WHERE NOT EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = owner)
    ON CONFLICT DO NOTHING;
    SELECT a.epoch, tenure.now_us() INTO epoch, now_us FROM tenure.authority a WHERE a.tenant = owner;
    IF FOUND THEN
        INSERT INTO tenure.job_key (tenant, project, idempotency_key, job_id, organization, kind, payload_digest)
        VALUES (owner, project, idempotency_key, id, organization, kind, payload_hash)
        ON CONFLICT DO NOTHING;
        created := FOUND;
    END IF;
    IF created IS NOT TRUE THEN
        SELECT k.job_id, k.organization, k.kind, k.payload_digest INTO known
        FROM tenure.job_key k
        WHERE k.tenant = owner AND k.project = enqueue.project AND k.idempotency_key = enqueue.idempotency_key;
        IF NOT FOUND THEN
            -- Another transaction's, which this one's snapshot cannot see (repeatable read).
            RAISE EXCEPTION USING ERRCODE = 'TNUNA', DETAIL = 'KEY_BUSY', HINT = 'Run your transaction again.', MESSAGE =
                'idempotency key ' || quote_literal(idempotency_key) || ' is being written by another transaction';
        ELSIF (known.organization, known.kind, known.payload_digest) <> (organization, kind, payload_hash) THEN
            RAISE EXCEPTION USING ERRCODE = 'TNCON', DETAIL = 'IDEMPOTENCY_MISMATCH',
                HINT = 'Use another key for another meaning; nothing was written.',
                MESSAGE = 'idempotency key ' || quote_literal(idempotency_key) || ' of project ' || quote_literal(project)
                    || ' belongs to job ' || known.job_id || ' with another ' || CASE
                        WHEN known.organization <> organization THEN 'organization'
                        WHEN known.kind <> kind THEN 'kind'
                        ELSE 'payload'
                    END;
        END IF;
        job_id := known.job_id;
        RETURN NEXT;
        RETURN;
    END IF;

    IF EXISTS (SELECT FROM tenure.queue q WHERE q.name = queue AND q.draining_at IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'TNREF', DETAIL = 'QUEUE_DRAINING',
            HINT = 'Enqueue again once it was transferred or resumed, or into another queue; nothing was written.',
            MESSAGE = 'queue ' || quote_literal(queue) || ' is being drained and takes no new jobs';
    END IF;

    due := coalesce((extract(epoch FROM scheduled_at) * 1000000)::bigint, now_us);
    INSERT INTO tenure.job (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority,
        payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, payload_digest,
        operation_digest)
    VALUES (id, owner, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, sent::json,
        max_attempts, backoff_us, lease_us, due, now_us, on_reconciled, on_declined, payload_hash,
        'v1:' || encode(sha256(convert_to('{"epoch":' || epoch || ',"job":"' || id || '","kind":' || to_json(kind)::text
            || ',"kind_version":' || kind_version || ',"payload":{'
            || concat_ws(',', nullif(members[1], ''), sealed, nullif(members[2], ''))
            || '},"tenant":' || to_json(owner)::text || '}', 'UTF8')), 'hex'));
    IF due <= now_us THEN
        INSERT INTO tenure.ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt,
            attempts_max, epoch)
        VALUES (id, owner, organization, kind, queue,
            CASE WHEN EXISTS (SELECT FROM tenure.queue q WHERE q.name = queue AND q.fair) THEN owner ELSE '' END,
            priority, due, 0, 0, max_attempts, epoch);
    ELSE
        INSERT INTO tenure.deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt,
            attempts_max, epoch)
        VALUES (id, owner, organization, kind, queue, priority, due, 0, 0, max_attempts, epoch);
    END IF;
    job_id := id;
    RETURN NEXT;
END $$;
